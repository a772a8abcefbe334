"""Answers that are not what a client expects, and calls that are sent again."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from codehub.client import (
    ConnectionFailed,
    Forbidden,
    InvalidRequest,
    NotFound,
    ServerError,
    TimedOut,
    TooManyRequests,
    UnexpectedAnswer,
)
from tests.sdk import KINDS, make_client
from tests.unit.client.conftest import FakeServer, Handler

TOKEN = "chub_" + "x" * 40
SESSION = {"user": {"id": "1", "username": "alice", "role": "user"}, "token": None}
EXEC = {
    "id": "e", "workspace_id": "w", "state": "running", "exit_code": None, "reason": None,
    "created_at": "2026-01-01T00:00:00Z", "started_at": None, "ended_at": None, "stdout_bytes": 0,
    "stderr_bytes": 0, "dropped_bytes": 0, "output_removed": False, "tty": False, "timeout_seconds": None,
    "started_by": "alice", "command": ["x"], "cwd": "", "command_omitted": False,
}  # fmt: skip


@pytest.fixture(params=KINDS)
def client(request: pytest.FixtureRequest, server: FakeServer) -> Iterator[Any]:
    loop = asyncio.new_event_loop()
    made = make_client(request.param, loop, server.url, TOKEN, retry_seconds=2.0, reconnect_seconds=2.0)
    yield made
    made.close()
    loop.close()


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (lambda handler: handler.raw(b"<html>\x1b[31mlogin</html>"), "not CodeHub's"),
        (lambda handler: handler.raw(b"<html>\x1b[31mno</html>", 403), "not CodeHub's"),
        (lambda handler: handler.raw(b"not json", kind="application/json"), "not valid JSON"),
        (lambda handler: handler.raw(b"[" * 100_000, kind="application/json"), "not valid JSON"),
        (lambda handler: handler.raw(b"\xff", kind="application/json"), "not valid JSON"),
        (lambda handler: handler.json([]), "should be dict"),
        (lambda handler: handler.json({"user": None, "token": None}), "the answer.user should be dict"),
        (lambda handler: handler.json({"token": None}), "no field 'user'"),
        (lambda handler: handler.json(SESSION | {"token": {"id": 7}}), "the answer.token.id should be str"),
        (lambda handler: handler.json({"error": "x"}, 418), "not CodeHub's"),
        (lambda handler: handler.json({}, 204), "not valid JSON"),
    ],
)  # fmt: skip
def test_an_answer_that_is_not_the_servers_is_a_clear_exception(
    client: Any, server: FakeServer, answer: Any, text: str
) -> None:
    server.answer = answer
    with pytest.raises((UnexpectedAnswer, ConnectionFailed)) as problem:
        client.session()
    assert "\x1b" not in str(problem.value)
    if not isinstance(problem.value, ConnectionFailed):
        assert text in str(problem.value)


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_not_followed_and_no_other_host_gets_the_token(
    client: Any, server: FakeServer, other_server: FakeServer, status: int
) -> None:
    server.answer = lambda handler: handler.raw(b"", status, Location=f"{other_server.url}/api/v1/session")
    with pytest.raises(UnexpectedAnswer) as problem:
        client.session()
    assert other_server.url in str(problem.value)
    for call in (client.tokens.list, lambda: client.workspaces.create("x")):
        with pytest.raises(UnexpectedAnswer):
            call()
    assert other_server.requests == []
    assert all(request.headers["Authorization"] == f"Bearer {TOKEN}" for request in server.requests)


@pytest.mark.parametrize("status", [301, 307, 308])
def test_a_websocket_follows_no_redirect_either(
    client: Any, server: FakeServer, other_server: FakeServer, status: int
) -> None:
    def answer(handler: Handler) -> None:
        if handler.path.endswith("/attach"):
            handler.raw(b"", status, Location=f"{other_server.url.replace('http', 'ws')}/attach")
        else:
            handler.json(EXEC | {"tty": True})

    server.answer = answer
    terminal = workspace(client).get_exec("e").attach()
    with pytest.raises(UnexpectedAnswer), terminal:
        pass
    assert other_server.requests == []
    attempt = server.requests[-1]
    assert attempt.headers["Upgrade"] == "websocket" and attempt.headers["Authorization"] == f"Bearer {TOKEN}"


def workspace(client: Any) -> Any:
    """Return a workspace whose calls go to the test's server."""
    from codehub.client.aio.workspaces import AsyncWorkspace
    from codehub.client.models import WorkspaceInfo
    from codehub.client.sync.workspaces import Workspace
    from tests.sdk import Blocking

    info = object.__new__(WorkspaceInfo)
    object.__setattr__(info, "id", "w")
    if isinstance(client, Blocking):
        return Blocking(AsyncWorkspace(client._target._calls, info), client._loop)
    return Workspace(client._calls, info)


@pytest.mark.parametrize(
    ("status", "kind"), [(403, Forbidden), (404, NotFound), (422, InvalidRequest), (500, ServerError)]
)
def test_an_error_has_the_code_and_message_of_the_server(
    client: Any, server: FakeServer, status: int, kind: type[Exception]
) -> None:
    server.answer = lambda handler: handler.error(status, "SOME_CODE")
    with pytest.raises(kind) as problem:
        client.session()
    assert (problem.value.status, problem.value.code) == (status, "SOME_CODE")  # type: ignore[attr-defined]
    assert str(problem.value) == "This is SOME_CODE. (SOME_CODE)"
    assert len(server.requests) == 1


@pytest.mark.parametrize("failure", ["break", "502", "503", "html", "429"])
def test_a_call_that_only_reads_is_sent_again(client: Any, server: FakeServer, failure: str) -> None:
    def answer(handler: Handler) -> None:
        if len(server.requests) > 2:
            handler.json(SESSION)
        elif failure == "break":
            handler.break_off()
        elif failure == "html":
            handler.raw(b"<html>bad gateway</html>", 502)
        elif failure == "429":
            handler.error(429, "TOO_MANY_REQUESTS", Retry_After="0")
        else:
            handler.error(int(failure), "UPSTREAM_UNAVAILABLE")

    server.answer = answer
    assert client.session().user.username == "alice"
    assert len(server.requests) == 3


def test_tries_end(client: Any, server: FakeServer) -> None:
    server.answer = lambda handler: handler.error(503, "UNAVAILABLE")
    with pytest.raises(ServerError):
        client.session()
    assert 2 < len(server.requests) < 40


def test_a_call_that_may_have_changed_something_is_not_sent_again(client: Any, server: FakeServer) -> None:
    server.answer = lambda handler: handler.break_off()
    with pytest.raises(ConnectionFailed) as problem:
        client.workspaces.create("one")
    assert problem.value.may_have_happened
    assert len(server.requests) == 1
    server.answer = lambda handler: handler.error(503, "UNAVAILABLE")
    with pytest.raises(ServerError):
        client.workspaces.create("one")
    assert len(server.requests) == 2


def test_a_limit_is_waited_for_only_if_waiting_helps(client: Any, server: FakeServer) -> None:
    server.answer = lambda handler: handler.error(429, "RUNNING_LIMIT_EXCEEDED", Retry_After="0")
    with pytest.raises(TooManyRequests):
        client.workspaces.create("one")
    assert len(server.requests) == 1
    server.answer = lambda handler: handler.error(429, "TOO_MANY_REQUESTS", Retry_After="60")
    with pytest.raises(TooManyRequests) as problem:
        client.workspaces.create("one")
    assert problem.value.retry_after == 60 and len(server.requests) == 2


def test_a_server_that_is_not_there_is_reported_as_that(client: Any, server: FakeServer) -> None:
    dead = make_client("sync", asyncio.new_event_loop(), "http://127.0.0.1:9", TOKEN, retry_seconds=0.2)
    with pytest.raises(ConnectionFailed) as problem:
        dead.workspaces.create("one")
    assert not problem.value.may_have_happened and "http://127.0.0.1:9" in str(problem.value)
    dead.close()


def test_an_answer_that_never_ends_does(
    client: Any, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from codehub.client.aio import transport as aio_transport
    from codehub.client.sync import transport as sync_transport

    for module in (aio_transport, sync_transport):
        monkeypatch.setattr(module, "MOST_ANSWER_BYTES", 1 << 20)

    def answer(handler: Handler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Connection", "close")
        handler.end_headers()
        while True:
            handler.wfile.write(b" " * 65536)

    server.answer = answer
    with pytest.raises(UnexpectedAnswer, match="too long"):
        client.session()


def test_a_delete_whose_answer_was_lost_counts_as_done(client: Any, server: FakeServer) -> None:
    def answer(handler: Handler) -> None:
        if len(server.requests) == 1:
            handler.break_off()
        else:
            handler.error(404, "NOT_FOUND")

    server.answer = answer
    client.tokens.revoke("t")
    assert len(server.requests) == 2
    with pytest.raises(NotFound):
        client.tokens.revoke("t")


def test_a_wait_has_an_end(client: Any, server: FakeServer) -> None:
    server.answer = lambda handler: handler.json(EXEC)
    command = workspace(client).get_exec("e")
    with pytest.raises(TimedOut, match=r"still runs after 0\.2 s"):
        command.wait(timeout=0.2)
