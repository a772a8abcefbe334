"""`logs?follow` of a workspace on a whole system, through the gateway."""

import itertools
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from codehub.access.app import LOG_FOLLOWERS
from codehub.runtimes.process.output_files import BURST_BYTES
from tests.integration.access.conftest import Workspace, running_workspace
from tests.integration.access.test_commands_system import bearer, make_token, revoke_tokens
from tests.services import System
from tests.waiting import PATIENCE, wait_for


@pytest.fixture
def talking(system: System) -> Iterator[Workspace]:
    with running_workspace(system, "talking") as found:
        yield found


def say(workspace: Workspace, script: str) -> None:
    """Append the output of a script to that of the IDE, and return when all of it is there."""
    exec_id = workspace.start(f'{{ {script}; }} >> "$HOME/say"')
    workspace.output(exec_id)
    wait_for(lambda: workspace.exec(exec_id)["exit_code"] == 0, "the script to end")


def logs(workspace: Workspace, **query: object) -> httpx.Response:
    answer = workspace.api.get(f"{workspace.url}/logs", params=dict(query))  # type: ignore[arg-type]
    assert answer.status_code == 200, answer.text
    return answer


def until_logged(workspace: Workspace, line: str) -> None:
    wait_for(lambda: line in logs(workspace).text.splitlines(), f"{line} in the output")


@contextmanager
def following(workspace: Workspace, lines: int = 200, **headers: str) -> Iterator[Iterator[bytes]]:
    """Yield the lines of the output that follows."""
    query = {"follow": True, "lines": lines}
    with workspace.api.stream("GET", f"{workspace.url}/logs", params=query, headers=headers) as response:
        assert response.status_code == 200
        yield _lines(response.iter_raw())


def _lines(pieces: Iterator[bytes]) -> Iterator[bytes]:
    rest = b""
    for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        yield from whole
    assert rest == b""


def test_output_follows_the_last_lines_until_the_workspace_stops(talking: Workspace) -> None:
    say(talking, "echo one; echo two; echo three")
    until_logged(talking, "three")
    assert logs(talking, lines=2).content == b"two\nthree\n"
    with following(talking, lines=2) as lines:
        assert list(itertools.islice(lines, 2)) == [b"two", b"three"]
        say(talking, r"echo four; printf '\033[31m\377\n'")
        assert list(itertools.islice(lines, 2)) == [b"four", b"\x1b[31m\xff"]
        talking.wish("STANDBY")
        assert list(lines) == [], "the stream ends as a whole"
    wait_for(lambda: talking.is_in("STANDBY"), "the workspace to stop")
    with following(talking, lines=1) as lines:
        assert list(lines) == [b"\x1b[31m\xff"], "what does not run has no more output"


def test_output_of_a_restarted_container_follows(talking: Workspace) -> None:
    say(talking, "echo before")
    until_logged(talking, "before")
    talking.wish("STANDBY")
    wait_for(lambda: talking.is_in("STANDBY"), "the workspace to stop")
    talking.wish("RUNNING")
    with following(talking, lines=1) as lines:
        assert next(lines) == b"before"
        wait_for(lambda: talking.is_in("RUNNING"), "the workspace to run")
        assert next(lines) == b"before", "the IDE repeats its file"


def test_head_and_bad_numbers_of_lines(talking: Workspace) -> None:
    for follow in (False, True):
        head = talking.api.head(f"{talking.url}/logs", params={"follow": follow})
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-type"] == "application/octet-stream"
    for query in ("lines=0", "lines=-1", "lines=100001", "lines=x", "follow=maybe"):
        answer = talking.api.get(f"{talking.url}/logs?{query}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (422, "VALIDATION_ERROR"), query
    assert talking.api.put(f"{talking.url}/logs").status_code == 405


def test_a_stream_ends_with_its_token_within_a_second(talking: Workspace) -> None:
    say(talking, "echo first")
    until_logged(talking, "first")
    token = make_token(talking, "use")
    with httpx.Client(base_url=talking.system.base_url, timeout=PATIENCE) as program:
        began = 0.0
        with (
            pytest.raises(httpx.TransportError),
            program.stream(
                "GET", f"{talking.url}/logs", params={"follow": True}, headers=bearer(token)
            ) as response,
        ):
            for _ in response.iter_raw():
                revoke_tokens(talking)
                began = time.monotonic()
        assert time.monotonic() - began < 1


def test_a_reader_that_waits_holds_nothing_back(talking: Workspace) -> None:
    with following(talking) as slow:
        say(talking, f"yes | head -c {3 * BURST_BYTES}; echo the end")
        until_logged(talking, "the end")
        assert b"the end" in slow


def test_a_flood_does_not_lengthen_what_is_not_followed(talking: Workspace) -> None:
    flood = talking.start('yes > "$HOME/say"')
    try:
        wait_for(lambda: len(logs(talking, lines=100_000).content) >= 190_000, "the flood")
        lines = logs(talking, lines=100_000).content.splitlines()
        assert len(lines) == 100_000 and set(lines) == {b"y"}
    finally:
        talking.api.delete(f"{talking.url}/execs/{flood}")


def test_a_user_follows_logs_a_limited_number_of_times(talking: Workspace) -> None:
    access = Path("/proc", str(talking.system.pids()["access"]), "fd")
    before = len(list(access.iterdir()))
    with ExitStack() as stack:
        limits = httpx.Limits(max_connections=None)
        cookies = dict(talking.api.cookies)
        program = stack.enter_context(
            httpx.Client(base_url=talking.system.base_url, timeout=PATIENCE, limits=limits, cookies=cookies)
        )
        url, query = f"{talking.url}/logs", {"follow": True}
        statuses = [
            stack.enter_context(program.stream("GET", url, params=query)).status_code
            for _ in range(LOG_FOLLOWERS + 2)
        ]
        assert statuses == [200] * LOG_FOLLOWERS + [429] * 2
        assert program.get(url).status_code == 200, "the recent output needs no slot"
    wait_for(lambda: len(list(access.iterdir())) < before + 10, "the streams to end")
    with following(talking, lines=1):
        pass
