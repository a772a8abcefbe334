"""Commands on a complete `codehub up`: through the gateway and the access part, in a real sandbox."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from codehub.asgi.server import MAX_WEBSOCKET_MESSAGE
from codehub.host.processes import ProcessId
from codehub.runtimes.exec_directory import ExecDirectory, ExecState
from tests.integration.access.conftest import Workspace
from tests.services import System
from tests.waiting import PATIENCE, wait_for

SIZE = {"rows": 24, "cols": 80}
LINES = ((20_000, "line"), (9, "more"))


def test_a_command_is_started_read_and_forgotten(workspace: Workspace) -> None:
    exec_id = workspace.start(
        'read line; echo "$line $GREETING"; echo problem >&2; exit 7', env={"GREETING": "there"}
    )
    assert workspace.exec(exec_id)["state"] == "running"
    sent = workspace.api.post(f"{workspace.url}/execs/{exec_id}/stdin?close=true", content=b"hello\n")
    assert sent.status_code == 204, sent.text
    output = workspace.output(exec_id)
    assert (output.status_code, output.content) == (200, b"hello there\n")
    assert output.headers["codehub-offset"] == "0"
    assert output.headers["content-type"] == "application/octet-stream"
    assert output.headers["content-security-policy"] == "sandbox; default-src 'none'"
    assert output.headers["content-disposition"] == "attachment"
    assert workspace.output(exec_id, stream="stderr").content == b"problem\n"
    found = workspace.exec(exec_id)
    assert (found["state"], found["exit_code"], found["stdout_bytes"]) == ("exited", 7, 12)
    assert "there" not in str(found), "variables are never sent back"
    assert workspace.output(exec_id, offset=6).content == b"there\n"
    assert workspace.output(exec_id, offset=13).status_code == 416

    assert workspace.api.delete(f"{workspace.url}/execs/{exec_id}").status_code == 204
    assert workspace.api.get(f"{workspace.url}/execs/{exec_id}").status_code == 404


def test_the_same_key_answers_with_the_same_command(workspace: Workspace) -> None:
    first = workspace.post("echo once >> count; wc -l < count", key="a")
    again = workspace.post("echo once >> count; wc -l < count", key="a")
    assert first.status_code == again.status_code == 201
    assert first.json()["id"] == again.json()["id"]
    assert workspace.output(first.json()["id"]).content == b"1\n"
    other = workspace.post("echo another", key="a")
    assert (other.status_code, other.json()["error"]["code"]) == (409, "INVALID_STATE")


def test_a_page_of_another_site_reads_nothing(workspace: Workspace) -> None:
    exec_id = workspace.start("echo secret")
    for headers in ({"Sec-Fetch-Site": "cross-site"}, {"Origin": "http://evil.example"}):
        answer = workspace.api.get(f"{workspace.url}/execs/{exec_id}/output", headers=headers)
        assert answer.status_code == 403, headers


def test_stopping_the_workspace_ends_its_commands_and_keeps_their_output(workspace: Workspace) -> None:
    exec_id = workspace.start("trap '' TERM; echo started; while :; do sleep 0.1; done")
    wait_for(lambda: workspace.exec(exec_id)["stdout_bytes"] > 0, "the command to write")
    workspace.wish("STANDBY")
    wait_for(lambda: workspace.is_in("STANDBY"), "the workspace to stop")
    found = workspace.exec(exec_id)
    assert (found["state"], found["reason"]) == ("killed", "WorkspaceStopped")
    assert workspace.output(exec_id).content == b"started\n"
    refused = workspace.post("true")
    assert refused.status_code == 409 and "wake" in refused.json()["error"]["message"]

    too_soon = workspace.post("true", wake=True, wake_timeout_seconds=0)
    assert (too_soon.status_code, too_soon.json()["error"]["code"]) == (504, "WAKE_TIMEOUT"), too_soon.text
    woken = workspace.start("echo awake", wake=True)
    assert workspace.output(woken).content == b"awake\n"

    workspace.wish("ARCHIVED")
    wait_for(lambda: workspace.is_in("ARCHIVED"), "the workspace to be archived")
    assert workspace.output(exec_id).status_code == 410
    assert workspace.post("true", wake=True).status_code == 409
    restored = workspace.start("echo restored", wake="restore")
    assert workspace.output(restored).content == b"restored\n"


def test_a_command_waits_for_a_new_workspace(workspace: Workspace) -> None:
    made = workspace.api.post("/api/v1/workspaces", json={"name": "new"})
    new = replace(workspace, id=made.json()["id"])
    assert new.output(new.start("echo first", wake=True)).content == b"first\n"
    query = {"without_archive": True, "confirm": "new"}
    wait_for(lambda: new.api.delete(new.url, params=query).is_success, "the workspace to be deleted")


@pytest.mark.parametrize("victims", [("api", "access", "gateway", "coordinator")])
def test_a_stream_is_resumed_after_every_part_was_killed(
    workspace: Workspace, victims: tuple[str, ...]
) -> None:
    """Kill -9 of every part in the middle of a stream: same bytes, same exit code."""
    lines, more = (f"for n in $(seq {count}); do echo {word} $n; done" for count, word in LINES)
    script = f"{lines}; read go; {more}; exit 3"
    exec_id = workspace.start(script)
    first, last = ("".join(f"{word} {n}\n" for n in range(1, count + 1)).encode() for count, word in LINES)
    expected = first + last
    received = b""
    killed = False
    sent = False

    def finished() -> bool:
        nonlocal received, killed, sent
        if killed and not sent and len(received) >= len(expected) - len(last):
            sent = _send_line(workspace, exec_id)
        try:
            with workspace.api.stream(
                "GET",
                f"{workspace.url}/execs/{exec_id}/output",
                params={"follow": True, "offset": len(received)},
            ) as response:
                if response.status_code != 200:
                    return False
                assert response.headers["codehub-offset"] == str(len(received))
                for chunk in response.iter_raw():
                    received += chunk
                    if not killed:
                        killed = True
                        for name in victims:
                            os.kill(workspace.system.pids()[name], signal.SIGKILL)
                    elif not sent and len(received) >= len(expected) - len(last):
                        sent = _send_line(workspace, exec_id)
        except httpx.TransportError:
            return False
        return len(received) >= len(expected)

    wait_for(finished, "the whole output")
    assert received == expected
    wait_for(lambda: _state(workspace, exec_id) == ("exited", 3), "the exit code")


def _send_line(workspace: Workspace, exec_id: str) -> bool:
    url = f"{workspace.system.base_url}{workspace.url}/execs/{exec_id}/stdin"
    try:
        return httpx.post(url, content=b"go\n", headers=workspace.credential, timeout=PATIENCE).is_success
    except httpx.TransportError:
        return False


def _state(workspace: Workspace, exec_id: str) -> tuple[object, object]:
    try:
        answer = workspace.api.get(f"{workspace.url}/execs/{exec_id}")
    except httpx.TransportError:
        return (None, None)
    if answer.status_code != 200:
        return (None, None)
    return answer.json()["state"], answer.json()["exit_code"]


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_commands_go_on_while_all_of_codehub_is_down(workspace: Workspace, how: str) -> None:
    """Only what holds the commands runs on. No byte of their output and no exit code is lost."""
    wait = "echo before; until [ -e go ]; do sleep 0.05; done"
    ends_meanwhile = workspace.start(f"{wait}; seq 20000; exit 5")
    runs_on = workspace.start("echo before; read go; seq 20000; echo problem >&2; exit 6")
    for exec_id in (ends_meanwhile, runs_on):
        wait_for(lambda: workspace.exec(exec_id)["stdout_bytes"] > 0, "the command to write")  # noqa: B023
    if how == "killed":
        workspace.system.kill9()
    else:
        assert workspace.system.stop() == 0
    (workspace.home / "go").touch()
    directory = ExecDirectory(workspace.system.data_dir / "execs" / workspace.id / ends_meanwhile)
    wait_for(lambda: _has_ended(directory), "the command to end without CodeHub")

    workspace.system.start()
    assert _state(workspace, runs_on) == ("running", None)
    assert _send(workspace, runs_on).status_code == 204
    everything = "".join(f"{line}\n" for line in ["before", *range(1, 20001)])
    for exec_id, exit_code in ((ends_meanwhile, 5), (runs_on, 6)):
        assert workspace.output(exec_id).text == everything
        assert _state(workspace, exec_id) == ("exited", exit_code)
    assert workspace.output(runs_on, stream="stderr").text == "problem\n"
    assert workspace.run("echo after") == "after\n"


def _has_ended(directory: ExecDirectory) -> bool:
    record = directory.read_record()
    return record is not None and record.state is not ExecState.RUNNING


def test_a_command_that_ignores_sigterm_is_killed_after_its_timeout(workspace: Workspace) -> None:
    """It ends with what it has orphaned. SIGKILL follows ten seconds after SIGTERM."""
    script = "(sleep 1000 &); trap '' TERM; echo started; while :; do sleep 0.1; done"
    exec_id = workspace.start(script, timeout_seconds=1)
    wait_for(lambda: workspace.exec(exec_id)["stdout_bytes"] > 0, "the command to write")
    assert workspace.processes("1000") == 1
    assert workspace.output(exec_id).content == b"started\n"
    found = workspace.exec(exec_id)
    assert (found["state"], found["reason"], found["exit_code"]) == ("killed", "Timeout", 137)
    wait_for(lambda: workspace.processes("1000") == 0, "what it has orphaned to end")


def test_signing_out_ends_a_stream_at_once(workspace: Workspace) -> None:
    exec_id = workspace.start("echo first; sleep 1000")
    other = workspace.system.client()
    began, ended = threading.Event(), threading.Event()

    def read() -> None:
        url, query = f"{workspace.url}/execs/{exec_id}/output", {"follow": True}
        with contextlib.suppress(httpx.TransportError), other.stream("GET", url, params=query) as response:
            for _ in response.iter_raw():
                began.set()
        ended.set()

    thread = threading.Thread(target=read)
    thread.start()
    assert began.wait(PATIENCE)
    logout = httpx.post(f"{workspace.system.base_url}/api/v1/logout", cookies=other.cookies, timeout=PATIENCE)
    assert logout.status_code == 204
    assert ended.wait(PATIENCE)
    thread.join(PATIENCE)
    assert workspace.exec(exec_id)["state"] == "running"


def test_the_access_part_runs_as_a_user_of_its_own(workspace: Workspace) -> None:
    pid = workspace.system.pids()["access"]
    assert ProcessId.of(pid) is not None
    if os.geteuid() == 0:
        uids = {line for line in _status(pid) if line.startswith(("Uid:", "Gid:"))}
        assert not any("\t0" in line for line in uids), uids


def _status(pid: int) -> list[str]:
    with open(f"/proc/{pid}/status") as file:
        return file.read().splitlines()


def test_a_token_decides_alone_and_its_stream_ends_with_it(workspace: Workspace) -> None:
    reader, user = make_token(workspace, "read"), make_token(workspace, "use")
    exec_id = workspace.start("echo first; sleep 1000")
    path = f"{workspace.url}/execs/{exec_id}"
    with httpx.Client(base_url=workspace.system.base_url, timeout=PATIENCE) as program:
        shown = program.get(path, headers=bearer(reader)).json()
        assert (shown["state"], shown["command"]) == ("running", None)
        assert program.get(f"{path}/output", headers=bearer(reader)).status_code == 403
        assert program.get(path, headers=bearer("chub_" + "x" * 40)).status_code == 401
        cross_site = bearer(user) | {"Sec-Fetch-Site": "cross-site"}
        assert program.get(f"{path}/output", headers=cross_site).content == b"first\n"
        with_cookie = workspace.api.get(path, headers=bearer("chub_" + "x" * 40))
        assert with_cookie.status_code == 401, "a cookie does not help"

        query = {"follow": True}
        with (
            pytest.raises(httpx.TransportError),
            program.stream("GET", f"{path}/output", params=query, headers=bearer(user)) as response,
        ):
            for _ in response.iter_raw():
                revoke_tokens(workspace)


def make_token(workspace: Workspace, *scopes: str) -> str:
    made = workspace.api.post("/api/v1/tokens", json={"name": " ".join(scopes), "scopes": list(scopes)})
    assert made.status_code == 201, made.text
    token: str = made.json()["token"]
    return token


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def revoke_tokens(workspace: Workspace) -> None:
    for item in workspace.api.get("/api/v1/tokens").json()["items"]:
        assert workspace.api.delete(f"/api/v1/tokens/{item['id']}").status_code == 204


def test_a_terminal_is_attached_resized_and_attached_again(workspace: Workspace) -> None:
    exec_id = workspace.start(["/bin/bash", "--norc"], tty=SIZE)
    url, headers = terminal_of(workspace, exec_id)
    with pytest.raises(InvalidStatus) as refused:
        connect(url, additional_headers=headers | {"Origin": "http://evil.example"})
    assert refused.value.response.status_code == 403
    with pytest.raises(InvalidStatus) as refused:
        connect(url)
    assert refused.value.response.status_code == 401

    with connect(url, additional_headers=headers) as first:
        first.send('{"rows": 50, "cols": 132}')
        first.send(b"stty size; echo mar''ker\n")
        assert b"50 132" in read_until(first, b"marker")
        with connect(url, additional_headers=headers) as second:
            assert b"50 132" in read_until(second, b"marker"), "the last screenful"
            second.send(b"exit 4\n")
            end = json.loads(read_texts(second)[-1])
        assert end == {"state": "exited", "exit_code": 4}
        assert '{"writer": false}' in read_texts(first)


def test_a_message_to_a_terminal_is_small_and_not_compressed(workspace: Workspace) -> None:
    """Otherwise one client makes the access part hold gigabytes for a few KiB."""
    exec_id = workspace.start(["/bin/sh", "-c", "stty raw -echo; head -c 65536 | wc -c; cat"], tty=SIZE)
    url, headers = terminal_of(workspace, exec_id)
    with connect(url, additional_headers=headers) as client:
        assert not client.protocol.extensions
        client.send(b"x" * MAX_WEBSOCKET_MESSAGE)
        assert b"65536" in read_until(client, b"65536")
        client.send(b"x" * (MAX_WEBSOCKET_MESSAGE + 1))
        with pytest.raises(ConnectionClosed) as closed:
            read_until(client, b"never")
    assert closed.value.rcvd is not None and closed.value.rcvd.code == 1009


def terminal_of(workspace: Workspace, exec_id: str) -> tuple[str, dict[str, str]]:
    """Return the address of a terminal, and the header fields of its owner."""
    url = f"ws://localhost:{workspace.system.port}{workspace.url}/execs/{exec_id}/attach"
    return url, workspace.credential


def read_until(websocket: ClientConnection, mark: bytes) -> bytes:
    received = b""
    while mark not in received:
        message = websocket.recv(PATIENCE)
        received += message if isinstance(message, bytes) else b""
    return received


def read_texts(websocket: ClientConnection) -> list[str]:
    """Return the texts until the other side closes."""
    return [message for message in websocket if isinstance(message, str)]


@pytest.mark.full
def test_two_hundred_commands_run_at_once(workspace: Workspace) -> None:
    with ThreadPoolExecutor(32) as pool:
        ids = list(pool.map(lambda n: workspace.start(f"read x; echo {n}; exit {n % 7}"), range(200)))
        listed = {
            item["id"]: item["state"] for item in workspace.api.get(f"{workspace.url}/execs").json()["items"]
        }
        assert all(listed[exec_id] == "running" for exec_id in ids)
        for answer in pool.map(lambda exec_id: _send(workspace, exec_id), ids):
            assert answer.status_code in (204, 409), answer.text  # 409: it ended before it acknowledged
        outputs = list(pool.map(lambda exec_id: workspace.output(exec_id).content, ids))
    assert outputs == [f"{n}\n".encode() for n in range(200)]
    assert [workspace.exec(exec_id)["exit_code"] for exec_id in ids] == [n % 7 for n in range(200)]


def _send(workspace: Workspace, exec_id: str) -> httpx.Response:
    return workspace.api.post(f"{workspace.url}/execs/{exec_id}/stdin?close=true", content=b"\n")


@pytest.mark.parametrize("size", [32 << 20, pytest.param(1 << 30, marks=pytest.mark.full)])
def test_a_slow_reader_gets_a_declared_gap_and_holds_nothing_back(workspace: Workspace, size: int) -> None:
    """The command writes more than is kept while its reader waits, and ends all the same."""
    exec_id = workspace.start(f"read go; head -c {size} /dev/zero; echo end")
    received, gaps = 0, 0
    with workspace.api.stream(
        "GET", f"{workspace.url}/execs/{exec_id}/output", params={"follow": True}
    ) as slow:
        assert slow.headers["codehub-offset"] == "0"
        assert _send(workspace, exec_id).status_code == 204
        wait_for(lambda: workspace.exec(exec_id)["state"] == "exited", "the command to end")
        with contextlib.suppress(httpx.TransportError):
            for chunk in slow.iter_raw():
                received += len(chunk)
    assert received < size, "the response ends incomplete"
    last = b""
    while received < size + len("end\n"):
        answer = workspace.output(exec_id, offset=received)
        offset = int(answer.headers["codehub-offset"])
        gaps += offset > received
        received, last = offset + len(answer.content), answer.content
    assert gaps == 1 and last.endswith(b"end\n")


def test_only_the_owner_reaches_commands(workspace: Workspace) -> None:
    """Another user sees nothing. An admin sees that a command runs, but not which, and reads nothing."""
    made = workspace.api.post("/api/v1/users", json={"username": "bob", "password": "a good password"})
    assert made.status_code == 201, made.text
    exec_id = workspace.start("echo secret")
    with contextlib.closing(workspace.system.client("bob", "a good password")) as bob:
        calls = [
            bob.get(f"{workspace.url}/execs"),
            bob.post(f"{workspace.url}/execs", json={"command": "true"}),
            bob.get(f"{workspace.url}/execs/{exec_id}/output"),
            bob.post(f"{workspace.url}/execs/{exec_id}/stdin", content=b"x"),
            bob.delete(f"{workspace.url}/execs/{exec_id}"),
            bob.get(f"{workspace.url}/logs"),
        ]
        assert [call.status_code for call in calls] == [403] * len(calls)
        own = Workspace(
            workspace.system, bob, bob.post("/api/v1/workspaces", json={"name": "own"}).json()["id"]
        )
        wait_for(lambda: own.is_in("RUNNING"), "the workspace to run")
        theirs = own.start("echo mine")
    seen = workspace.api.get(f"{own.url}/execs/{theirs}")
    assert (seen.status_code, seen.json()["command"]) == (200, None)
    assert workspace.api.get(f"{own.url}/execs/{theirs}/output").status_code == 403
    assert workspace.api.post(f"{own.url}/execs", json={"command": "true"}).status_code == 403
    assert workspace.api.get(f"{own.url}/execs/{exec_id}").status_code == 404, (
        "a command of another workspace"
    )


def test_logs_are_read_also_in_standby(workspace: Workspace) -> None:
    wait_for(lambda: workspace.api.get(f"{workspace.url}/logs").status_code == 200, "the logs")
    log = workspace.system.data_dir / "execs" / workspace.id / "output.log"
    with log.open("a") as file:
        file.write("a line of the IDE\n")
    answer = workspace.api.get(f"{workspace.url}/logs?lines=1")
    assert (answer.text, answer.headers["content-type"]) == (
        "a line of the IDE\n",
        "application/octet-stream",
    )
    workspace.wish("STANDBY")
    wait_for(lambda: workspace.is_in("STANDBY"), "the workspace to stop")
    assert "a line of the IDE" in workspace.api.get(f"{workspace.url}/logs").text


def test_input_of_any_size_is_streamed_as_fast_as_the_command_takes_it(workspace: Workspace) -> None:
    exec_id = workspace.start("sleep 1; wc -c")
    size = 64 << 20

    def pieces() -> Iterator[bytes]:
        for _ in range(size >> 20):
            yield bytes(1 << 20)

    sent = workspace.api.post(f"{workspace.url}/execs/{exec_id}/stdin?close=true", content=pieces())
    assert sent.status_code == 204, sent.text
    assert workspace.output(exec_id).content == b"%d\n" % size
    too_large = workspace.post("true", env={"A": "x" * (1 << 20)})
    assert too_large.status_code == 413, "what is not streamed is bounded"


def test_a_cut_off_request_neither_closes_the_input_nor_stays(workspace: Workspace) -> None:
    """The command takes nothing, so the access part does not read on and sees no disconnect by reading."""
    exec_id = workspace.start("until [ -e go ]; do sleep 0.05; done; wc -c; echo end")
    access = Path("/proc", str(workspace.system.pids()["access"]), "fd")
    before = len(list(access.iterdir()))
    for _ in range(30):
        cut_off(workspace, exec_id, bytes(64 << 10))
    wait_for(lambda: len(list(access.iterdir())) < before + 10, "the calls to end")
    assert workspace.exec(exec_id)["state"] == "running"
    workspace.start("touch go")
    assert workspace.api.post(f"{workspace.url}/execs/{exec_id}/stdin?close=true").status_code == 204
    assert workspace.output(exec_id).content.endswith(b"end\n")


def cut_off(workspace: Workspace, exec_id: str, body: bytes) -> None:
    """Send a part of a body that is to close the input, and disconnect."""
    address = urlsplit(workspace.system.base_url)
    [(name, value)] = workspace.credential.items()
    head = (
        f"POST {workspace.url}/execs/{exec_id}/stdin?close=true HTTP/1.1\r\nHost: {address.netloc}\r\n"
        f"{name}: {value}\r\nContent-Length: {2 * len(body)}\r\n\r\n"
    )
    with socket.create_connection((address.hostname or "", address.port or 80)) as connection:
        connection.settimeout(0.2)
        with contextlib.suppress(TimeoutError):
            connection.sendall(head.encode() + body)


def test_the_documented_script_makes_the_first_token(system: System) -> None:
    page = (Path(__file__).parents[3] / "docs" / "tokens.md").read_text().partition("### From a script")[2]
    script = page.partition("```sh\n")[2].partition("```")[0] + '\nprintf %s "$CODEHUB_TOKEN"'
    variables = {"CODEHUB_URL": system.base_url, "CODEHUB_USERNAME": system.admin_username}
    for password, succeeds in ((system.admin_password, True), ("a wrong password", False)):
        done = subprocess.run(
            ["sh", "-c", script], env=os.environ | variables | {"CODEHUB_PASSWORD": password},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert (done.returncode == 0) == succeeds, done.stderr
        if succeeds:
            session = httpx.get(
                f"{system.base_url}/api/v1/session", headers={"Authorization": f"Bearer {done.stdout}"}
            )
            assert session.json()["token"]["name"] == "ci", session.text
        else:
            assert "password" in done.stderr and not done.stdout
