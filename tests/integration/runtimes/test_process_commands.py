"""Commands in a running workspace, on the process runtime."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from codehub.host.processes import ProcessId
from codehub.runtimes import exec_client
from codehub.runtimes.command_runtime import ControlFailed
from codehub.runtimes.exec_directory import STDERR, STDOUT, ExecDirectory, ExecRecord, ExecState
from codehub.runtimes.exec_request import CommandRefused, ExecRequest, TerminalSize
from tests.integration.runtimes.conftest import TINY, RuntimeFixture
from tests.waiting import eventually

_numbers = itertools.count()


def shell(script: str, **fields: object) -> ExecRequest:
    return replace(ExecRequest(f"exec-{next(_numbers)}", ["/bin/sh", "-c", script]), **fields)  # type: ignore[arg-type]


async def start(fixture: RuntimeFixture, workspace_id: str, request: ExecRequest) -> ExecDirectory:
    await fixture.runtime.commands.start_command(workspace_id, request)
    return fixture.runtime.commands.directory(workspace_id, request.exec_id)


async def record_of(directory: ExecDirectory) -> ExecRecord:
    await exec_client.wait(directory)
    record = directory.read_record()
    assert record is not None
    return record


async def output(directory: ExecDirectory, stream: str = STDOUT) -> bytes:
    return b"".join([data async for _, data in exec_client.follow(directory, stream)])


async def run(fixture: RuntimeFixture, workspace_id: str, script: str, **fields: object) -> str:
    directory = await start(fixture, workspace_id, shell(script, **fields))
    return (await output(directory)).decode()


async def chunks(*data: bytes) -> AsyncIterator[bytes]:
    for each in data:
        yield each


async def test_a_command_has_its_output_and_exit_code(fixture: RuntimeFixture) -> None:
    await fixture.started("w1")
    directory = await start(fixture, "w1", shell("echo out; echo err >&2; exit 7"))
    assert (await output(directory), await output(directory, STDERR)) == (b"out\n", b"err\n")
    record = await record_of(directory)
    assert (record.state, record.exit_code, record.reason) == (ExecState.EXITED, 7, None)
    assert record.ended_at is not None and record.ended_at >= record.started_at


async def test_a_command_runs_as_the_workspace_does(fixture: RuntimeFixture) -> None:
    """The same user, namespaces, control groups, rights and filter of system calls as the IDE."""
    await fixture.started("w1")
    script = (
        "id -u; id -g; id -G; pwd; umask; for n in $(ls /proc/self/ns); do readlink /proc/self/ns/$n; done;"
        "grep -E '^(Cap|NoNewPrivs|Seccomp)' /proc/self/status; cat /proc/self/cgroup; ulimit -n; hostname;"
        "cat /proc/self/oom_score_adj; ls /proc | grep -c '^1$'"
    )
    assert (await run(fixture, "w1", script)).split() == (await fixture.inside("w1", script)).split()


async def test_a_command_starts_at_most_once(fixture: RuntimeFixture) -> None:
    await fixture.started("w1")
    request = shell("echo again >> count; wc -l < count")
    first = await start(fixture, "w1", request)
    assert await output(first) == b"1\n"
    assert await output(await start(fixture, "w1", request)) == b"1\n"


async def test_input_reaches_a_command_until_it_is_closed(fixture: RuntimeFixture) -> None:
    await fixture.started("w1")
    directory = await start(fixture, "w1", shell("cat"))
    await exec_client.send_input(directory, chunks(b"one ", b"two "))
    await exec_client.send_input(directory, chunks(b"three"), close=True)
    assert await output(directory) == b"one two three"
    with pytest.raises(ControlFailed):
        await exec_client.send_input(directory, chunks(b"four"))


async def test_a_command_without_input_finds_it_closed(fixture: RuntimeFixture) -> None:
    await fixture.started("w1")
    assert await run(fixture, "w1", "cat; echo end", stdin=False) == "end\n"


async def test_a_command_that_does_not_exist_ends_as_in_a_shell(fixture: RuntimeFixture) -> None:
    await fixture.started("w1")
    directory = await start(fixture, "w1", ExecRequest("missing", ["no-such-command", "x"]))
    record = await record_of(directory)
    assert (record.state, record.exit_code) == (ExecState.EXITED, 127)
    assert await output(directory, STDERR) == b"no-such-command: No such file or directory\n"


async def test_a_missing_directory_is_reported(fixture: RuntimeFixture) -> None:
    await fixture.started("w1")
    directory = await start(fixture, "w1", shell("true", cwd="nowhere"))
    assert (await record_of(directory)).exit_code == 126
    assert b"'nowhere' cannot be entered" in await output(directory, STDERR)


async def test_a_terminal_echoes_resizes_and_ends(fixture: RuntimeFixture) -> None:
    await fixture.started("w1")
    size = TerminalSize(24, 80)
    directory = await start(
        fixture, "w1", shell("stty size; read x; stty size; echo $TERM; test -t 0", tty=size)
    )
    await eventually(
        lambda: asyncio.to_thread(directory.size, STDOUT), "the first size", lambda size: size > 0
    )
    await exec_client.control(directory, "resize", rows=50, cols=132)
    with contextlib.suppress(ControlFailed):  # the command may end before the input is acknowledged
        await exec_client.send_input(directory, chunks(b"typed\n"))
    assert (await output(directory)).split() == [b"24", b"80", b"typed", b"50", b"132", b"xterm-256color"]
    assert (await record_of(directory)).exit_code == 0


async def test_a_command_that_ignores_sigterm_is_killed_after_its_timeout(fixture: RuntimeFixture) -> None:
    await fixture.started("w1")
    script = "trap '' TERM; while :; do sleep 0.05; done"
    directory = await start(fixture, "w1", shell(script, timeout_seconds=0.2, kill_after_seconds=0.2))
    record = await record_of(directory)
    assert (record.state, record.exit_code, record.reason) == (ExecState.KILLED, 137, "Timeout")


async def test_a_signal_reaches_the_command(fixture: RuntimeFixture) -> None:
    await fixture.started("w1")
    directory = await start(
        fixture, "w1", shell("trap 'echo caught; exit 3' INT; echo ready; while :; do sleep 0.05; done")
    )
    await eventually(lambda: asyncio.to_thread(directory.size, STDOUT), "the trap", lambda size: size > 0)
    await exec_client.control(directory, "signal", number=2)
    assert await output(directory) == b"ready\ncaught\n"
    assert (await record_of(directory)).exit_code == 3


async def test_a_stopped_workspace_ends_its_commands(fixture: RuntimeFixture) -> None:
    await fixture.started("w1")
    directory = await start(
        fixture, "w1", shell("trap 'echo term; exit 0' TERM; echo ready; while :; do sleep 0.05; done")
    )
    stubborn = await start(fixture, "w1", shell("trap '' TERM; echo ready; while :; do sleep 0.05; done"))
    for each in (directory, stubborn):
        await eventually(
            lambda each=each: asyncio.to_thread(each.size, STDOUT), "the trap", lambda size: size > 0
        )
    await fixture.runtime.stop("w1")
    assert await output(directory) == b"ready\nterm\n"
    for each in (directory, stubborn):
        record = each.read_record()
        assert record is not None and (record.state, record.reason) == (ExecState.KILLED, "WorkspaceStopped")
    with pytest.raises(CommandRefused, match="it has stopped"):
        await start(fixture, "w1", shell("true"))


async def test_a_killed_monitor_loses_its_command(fixture: RuntimeFixture) -> None:
    await fixture.started("w1")
    directory = await start(fixture, "w1", shell("echo $$ > pid; exec sleep 1000"))
    record = directory.read_record()
    assert record is not None and record.state is ExecState.RUNNING
    os.kill(record.monitor.pid, 9)
    lost = await eventually(lambda: asyncio.to_thread(directory.read_record), "it to be lost",
                            lambda record: record is not None and record.state is ExecState.LOST)  # fmt: skip
    assert lost is not None
    await eventually(
        lambda: fixture.inside("w1", "pgrep -x sleep; true"),
        "the command to be killed",
        lambda text: text == "",
    )


async def test_only_the_newest_output_is_kept_and_the_gap_is_shown(fixture: RuntimeFixture) -> None:
    await fixture.started("w1")
    directory = await start(fixture, "w1", shell("seq 200000", output_bytes=64 << 10))
    await record_of(directory)
    pieces = [piece async for piece in exec_client.follow(directory, STDOUT)]
    whole = "".join(f"{number}\n" for number in range(1, 200001)).encode()
    first = pieces[0][0]
    kept = b"".join(data for _, data in pieces)
    assert first > 0 and kept == whole[first:] and directory.size(STDOUT) == len(whole)
    assert 64 << 10 <= len(kept) <= 73 << 10


async def test_a_slow_reader_does_not_hold_a_command_back(fixture: RuntimeFixture) -> None:
    await fixture.started("w1")
    directory = await start(
        fixture, "w1", shell("head -c 50000000 /dev/zero; echo done > done", output_bytes=1 << 20)
    )
    reader = exec_client.follow(directory, STDOUT)
    await anext(reader)
    assert (await record_of(directory)).exit_code == 0
    rest = [found async for found, _ in reader]
    assert rest[0] > 1 << 20, "the reader missed what is no longer kept"


async def test_hostile_variables_run_nothing_with_other_rights(fixture: RuntimeFixture) -> None:
    spec = await fixture.started("w1")
    trap = spec.home / "trap.sh"
    trap.write_text('id -u >> "$HOME/ran-as"\n')
    (spec.home / "id").write_text("#!/bin/sh\n")
    (spec.home / "id").chmod(0o755)
    hostile = {"PATH": "/home/coder:/usr/bin:/bin", "PYTHONPATH": "/home/coder", "IFS": "/"}
    hostile |= dict.fromkeys(("BASH_ENV", "ENV", "PYTHONSTARTUP"), "/home/coder/trap.sh")
    directory = await start(
        fixture, "w1", ExecRequest("hostile", ["bash", "-c", "/usr/bin/id -u"], env=hostile)
    )
    own = str(spec.uid) if os.geteuid() == 0 else str(os.geteuid())
    assert (await output(directory)).decode().split() == [own]
    assert set((spec.home / "ran-as").read_text().split()) <= {own, ""}


async def test_what_enters_a_workspace_cannot_be_traced_and_brings_no_descriptor(
    fixture: RuntimeFixture,
) -> None:
    await fixture.started("w1")
    assert (await run(fixture, "w1", "ls -l /proc/self/fd | grep -v ' /proc/' | wc -l")).strip() == "4"
    script = (
        "for i in $(seq 300); do for p in /proc/[0-9]*; do cat $p/environ $p/maps; done; done 2>/dev/null"
        " | grep -ac keeper"
    )
    watcher = await start(fixture, "w1", shell(script))
    for _ in range(10):
        await run(fixture, "w1", "true")
    assert (await output(watcher)).strip() == b"0"


async def test_many_commands_at_once(fixture: RuntimeFixture) -> None:
    await fixture.started("w1", replace(TINY, pids=1024))
    directories = await asyncio.gather(
        *(start(fixture, "w1", shell(f"echo {number}; exit {number % 50}")) for number in range(200))
    )
    for number, directory in enumerate(directories):
        assert await output(directory) == b"%d\n" % number
        assert (await record_of(directory)).exit_code == number % 50


async def test_a_background_process_keeps_writing_after_its_command(fixture: RuntimeFixture) -> None:
    await fixture.started("w1")
    directory = await start(
        fixture, "w1", shell("(until [ -e go ]; do sleep 0.02; done; echo late) & echo early")
    )
    assert (await record_of(directory)).state is ExecState.EXITED
    await fixture.inside("w1", "touch go")
    await eventually(lambda: asyncio.to_thread(directory.read, STDOUT, 0, 100), "the late output",
                     lambda read: read[1] == b"early\nlate\n")  # fmt: skip
    record = directory.read_record()
    assert record is not None
    await eventually(
        lambda: asyncio.to_thread(ProcessId.is_alive, record.monitor),
        "its monitor to end",
        lambda alive: not alive,
    )


ENDLESS = "setsid sh -c 'trap \"\" TERM; while :; do echo more; sleep 0.02; done' & echo early"


@pytest.mark.parametrize("by", ["kill", "timeout"])
async def test_what_a_command_leaves_in_the_background_is_killed(fixture: RuntimeFixture, by: str) -> None:
    await fixture.started("w1")
    limits = {"timeout_seconds": 0.5, "kill_after_seconds": 0.1} if by == "timeout" else {}
    directory = await start(fixture, "w1", shell(ENDLESS, **limits))
    record = await record_of(directory)
    assert record.state is ExecState.EXITED and record.monitor.is_alive()
    if by == "kill":
        await exec_client.control(directory, "kill", reason="Deleted")
    await eventually(
        lambda: asyncio.to_thread(ProcessId.is_alive, record.monitor),
        "its monitor to end",
        lambda alive: not alive,
    )
    assert "echo more" not in await fixture.inside("w1", "cat /proc/[0-9]*/cmdline")
    assert directory.read_record() == record


@pytest.mark.parametrize("exec_id", ["", "..", "../w2", "a/b", "a\0b"])
async def test_the_id_of_a_command_names_no_other_directory(fixture: RuntimeFixture, exec_id: str) -> None:
    with pytest.raises(ValueError, match="not the id of a command"):
        await fixture.runtime.commands.start_command("w1", ExecRequest(exec_id, ["true"]))
