"""Commands through the SDK, on a whole system."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from codehub.client import (
    Chunk,
    CommandKilled,
    Conflict,
    NotFound,
    ServerError,
    TerminalEnded,
    TerminalOutput,
    TimedOut,
)
from tests.integration.client.conftest import KEPT_BYTES, Sdk, is_deleted
from tests.services import System, descendants
from tests.waiting import PATIENCE, wait_for

LINES = 20_000
PARTS = [("access",), ("gateway",), ("access", "gateway", "api", "coordinator")]


def kill(sdk: Sdk, parts: tuple[str, ...]) -> None:
    kill_parts(sdk.system, parts)


def kill_parts(system: System, parts: tuple[str, ...]) -> None:
    """Kill parts and their workers, which would end their streams first. A killed one may not be back yet."""
    for name in parts:
        found = system.pids().get(name)
        if found is None:
            continue
        # The coordinator's children are storage jobs.
        for pid in [found] if name == "coordinator" else [found, *descendants(found)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def joined(chunks: Iterator[Chunk]) -> dict[str, bytes]:
    output = {"stdout": b"", "stderr": b""}
    for chunk in chunks:
        assert chunk.skipped == 0
        assert chunk.offset == len(output[chunk.stream])
        output[chunk.stream] += chunk.data
    return output


def test_a_command_has_both_streams_and_an_exit_code(workspace: Any) -> None:
    command = workspace.exec(
        ["sh", "-c", 'echo "$GREETING in $(basename $PWD)"; echo problem >&2; exit 7'],
        env={"GREETING": "hello"}, cwd="/tmp",
    )  # fmt: skip
    assert joined(iter(command)) == {"stdout": b"hello in tmp\n", "stderr": b"problem\n"}
    assert (command.wait(), command.exit_code, command.state) == (7, 7, "exited")

    again = workspace.get_exec(command.id)
    assert joined(iter(again))["stdout"] == b"hello in tmp\n"
    assert b"".join(chunk.data for chunk in again.output("stderr", 3, follow=False)) == b"blem\n"
    assert command.id in [each.id for each in workspace.execs()]
    command.delete()
    with pytest.raises(NotFound):
        workspace.get_exec(command.id)


def test_run_sends_input_and_returns_all(workspace: Any) -> None:
    data = os.urandom(600_000)
    done = workspace.run("cat; echo done >&2; exit 3", input=data)
    assert (done.exit_code, done.stdout, done.stderr, done.skipped) == (3, data, b"done\n", 0)


def test_output_comes_while_the_command_runs(workspace: Any) -> None:
    command = workspace.exec("echo first; echo other >&2; read line; echo $line", stdin=True)
    output = iter(command)
    found = {next(output).data, next(output).data}
    assert found == {b"first\n", b"other\n"}
    command.write(b"second\n")
    assert next(output).data == b"second\n"
    assert list(output) == []
    assert command.wait() == 0


def test_a_reader_may_stop_before_the_command_does(workspace: Any) -> None:
    command = workspace.exec("while :; do echo line; sleep 0.01; done")
    for chunk in command:
        assert chunk.data.startswith(b"line\n")
        break
    command.signal("TERM")
    assert command.wait() == 128 + signal.SIGTERM


def test_a_key_makes_a_call_safe_to_repeat(workspace: Any) -> None:
    first = workspace.exec("echo once >> count; wc -l < count", key="a")
    again = workspace.exec("echo once >> count; wc -l < count", key="a")
    assert first.id == again.id
    assert joined(iter(again))["stdout"] == b"1\n"
    with pytest.raises(Conflict) as problem:
        workspace.exec("echo other", key="a")
    assert problem.value.code == "INVALID_STATE" and problem.value.message in str(problem.value)


def test_a_command_that_is_killed_is_an_exception(workspace: Any) -> None:
    command = workspace.exec(["sleep", "600"])
    began = time.monotonic()
    with pytest.raises(TimedOut):
        command.wait(timeout=0.3)
    assert time.monotonic() - began >= 0.3
    workspace.stop().wait_until("STANDBY")
    with pytest.raises(CommandKilled) as killed:
        command.wait()
    assert (killed.value.state, killed.value.reason) == ("killed", "WorkspaceStopped")

    woken = workspace.run("echo awake", wake=True)
    assert woken.stdout == b"awake\n"


@pytest.mark.sampled(4, "test_")
@pytest.mark.parametrize("parts", PARTS, ids="-".join)
def test_output_goes_on_after_parts_were_killed(sdk: Sdk, workspace: Any, parts: tuple[str, ...]) -> None:
    """Both streams have each byte once, although the server was killed in the middle of each."""
    script = f"for n in $(seq {LINES}); do echo out $n; echo err $n >&2; done; read go; echo end; exit 5"
    command = workspace.exec(script, stdin=True)
    output = {"stdout": b"", "stderr": b""}
    expected = {
        stream: "".join(f"{word} {n}\n" for n in range(1, LINES + 1)).encode()
        for stream, word in (("stdout", "out"), ("stderr", "err"))
    }
    is_killed = is_sent = False
    for chunk in command:
        assert (chunk.skipped, chunk.offset) == (0, len(output[chunk.stream]))
        output[chunk.stream] += chunk.data
        if not is_killed and all(output.values()):
            is_killed = True
            kill(sdk, parts)
        if not is_sent and output == expected:
            is_sent = True
            kill(sdk, parts)  # both streams wait
            wait_for(lambda: goes_on(workspace, command), "the input to arrive")
    assert is_killed and is_sent
    assert output == expected | {"stdout": expected["stdout"] + b"end\n"}
    assert command.wait() == 5


def goes_on(workspace: Any, command: Any) -> bool:
    from codehub.client import ConnectionFailed, ServerError

    try:
        command.write(b"go\n")
    except (ConnectionFailed, ServerError):  # sent once more by the test: the command reads one line
        return False
    except Conflict:  # it has ended
        return True
    return True


def test_output_that_is_no_longer_kept_is_counted(workspace: Any) -> None:
    size = 3 * KEPT_BYTES
    command = workspace.exec(f"head -c {size} /dev/zero | tr '\\0' x")
    command.wait()
    chunks = list(command)
    assert chunks[0].skipped >= size - 2 * KEPT_BYTES
    assert [chunk.skipped for chunk in chunks[1:]] == [0] * (len(chunks) - 1)
    assert sum(chunk.skipped + len(chunk.data) for chunk in chunks) == size
    done = command.communicate()
    assert done.skipped == chunks[0].skipped and done.stdout.strip(b"x") == b""


@pytest.mark.sampled(4, "test_")
@pytest.mark.parametrize("parts", [("access",), ("gateway",)], ids="-".join)
def test_a_terminal_goes_on_after_a_part_was_killed(sdk: Sdk, workspace: Any, parts: tuple[str, ...]) -> None:
    command = workspace.exec(["bash", "--norc"], tty=(24, 80))
    seen = b""
    is_killed = is_repeated = False
    with command.attach() as terminal:
        terminal.resize(40, 100)
        terminal.send(b"stty size\n")
        for event in terminal:
            if isinstance(event, TerminalEnded):
                assert (event.state, event.exit_code) == ("exited", 4)
                break
            if not isinstance(event, TerminalOutput):
                continue
            is_repeated = is_repeated or event.is_repeated
            seen = event.data if event.is_repeated else seen + event.data
            if event.is_repeated:
                terminal.send(b"stty size; echo still-$((40+2)); exit 4\n")
            elif not is_killed and b"40 100" in seen:
                is_killed = True
                kill(sdk, parts)
    assert is_killed and is_repeated
    assert seen.count(b"40 100") == 2 and b"still-42" in seen
    assert command.wait() == 4


def test_a_port_is_reached_both_ways(workspace: Any) -> None:
    program = (
        "import socketserver\n"
        "class Upper(socketserver.StreamRequestHandler):\n"
        "    def handle(self): self.wfile.write(self.rfile.read().upper())\n"
        "server = socketserver.TCPServer(('127.0.0.1', 4000), Upper); print('ready', flush=True)\n"
        "server.serve_forever()"
    )
    command = workspace.exec(["python3", "-c", program])
    assert next(iter(command)).data == b"ready\n"
    data = b"some bytes\n" * 20_000
    with workspace.connect_port(4000) as port:
        port.send(data)
        port.end()
        received = bytearray()
        while piece := port.receive():
            received += piece
        assert received == data.upper()
    with pytest.raises(ServerError):
        workspace.connect_port(4001)
    with pytest.raises(ValueError, match="not a port"):
        workspace.connect_port(0)
    command.delete()


@pytest.mark.sampled(4, "test_")
@pytest.mark.parametrize("parts", [("access",), ("gateway",)], ids="-".join)
def test_logs_are_followed_until_the_workspace_stops(sdk: Sdk, parts: tuple[str, ...]) -> None:
    made = sdk.client.workspaces.create("talk", image="talking")
    made.wait_until("RUNNING", PATIENCE)
    made.run("echo hello >> say")
    seen, is_repeated = b"", False
    for chunk in made.follow_logs(lines=10):
        if not seen:
            kill(sdk, parts)
        seen += chunk.data
        if chunk.is_repeated and not is_repeated:
            is_repeated = True
            made.stop()
    assert is_repeated and seen.count(b"hello\n") >= 2
    made.wait_until("STANDBY", PATIENCE)
    wait_for(lambda: is_deleted(made), "the workspace to be deleted")
