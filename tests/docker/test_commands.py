"""Commands in containers: what holds on the process runtime, and what is the engine's."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from codehub.host.processes import ProcessId, descendants
from codehub.runtimes import exec_client
from codehub.runtimes.base import WorkloadSpec
from codehub.runtimes.docker import exec_note
from codehub.runtimes.docker.runtime import DockerRuntime
from codehub.runtimes.exec_client import ControlFailed
from codehub.runtimes.exec_directory import STDERR, STDOUT, ExecDirectory, ExecState
from codehub.runtimes.exec_request import CommandRefused, ExecRequest, TerminalSize
from tests.docker.conftest import TINY_IMAGE, make_options
from tests.docker.engine import OwnEngine
from tests.integration.runtimes.test_process_commands import (  # noqa: F401 - tests of both runtimes
    chunks,
    output,
    record_of,
    run,
    shell,
    start,
    test_a_command_has_its_output_and_exit_code,
    test_a_command_starts_at_most_once,
    test_a_command_that_does_not_exist_ends_as_in_a_shell,
    test_a_command_that_ignores_sigterm_is_killed_after_its_timeout,
    test_a_command_without_input_finds_it_closed,
    test_a_missing_directory_is_reported,
    test_a_signal_reaches_the_command,
    test_a_slow_reader_does_not_hold_a_command_back,
    test_a_stopped_workspace_ends_its_commands,
    test_input_reaches_a_command_until_it_is_closed,
    test_only_the_newest_output_is_kept_and_the_gap_is_shown,
    test_the_id_of_a_command_names_no_other_directory,
)
from tests.waiting import eventually, until

ROOT = Path(__file__).parents[2]
UID = 2_500_000
STUBBORN = "trap '' TERM; echo ready; while :; do sleep 0.05; done"


class Commands:
    """A Docker runtime, with the interface that the tests of the process runtime use.

    Tests share a container as long as it runs, since a start takes longer than most of them.
    """

    def __init__(self, engine: OwnEngine, directory: Path) -> None:
        self.engine = engine
        self._options = make_options(engine, directory)
        self._homes = directory
        self.runtime = self.other_runtime()

    def other_runtime(self, installation_id: str = "commands", **options: object) -> DockerRuntime:
        return DockerRuntime(installation_id, replace(self._options, **options))  # type: ignore[arg-type]

    async def started(self, workspace_id: str, **changes: object) -> WorkloadSpec:
        """Return a running workspace whose home is empty."""
        image = replace(TINY_IMAGE, **changes)  # type: ignore[arg-type]
        spec = WorkloadSpec(workspace_id, image, self._homes / workspace_id, "op-0", UID)
        spec.home.mkdir(exist_ok=True)
        for path in spec.home.iterdir():
            path.unlink()
        await self.runtime.start(spec)
        await eventually(
            lambda: self.runtime.status(workspace_id), "the workspace to be ready", lambda fact: fact.ready
        )
        return spec

    async def inside(self, workspace_id: str, script: str) -> str:
        done = await asyncio.to_thread(self.engine.inside, workspace_id, script)
        return done.stdout.decode()


@pytest.fixture(scope="module")
def shared(own_engine: OwnEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    directory = tmp_path_factory.mktemp("commands")
    directory.chmod(0o711)
    yield Commands(own_engine, directory)
    own_engine.clear()


@pytest.fixture
async def fixture(shared: Commands) -> AsyncIterator[Commands]:
    shared.runtime = shared.other_runtime()
    yield shared
    await shared.runtime.close()


async def process_of(directory: ExecDirectory) -> ProcessId:
    """Return the process of a command, as the host sees it."""

    async def find() -> ProcessId | None:
        note = exec_note.read(directory)
        return None if note is None else note.process

    found = await eventually(find, "the process of the command to be known")
    assert found is not None
    return found


async def test_a_command_runs_as_the_ide_does(fixture: Commands) -> None:
    """The same user, namespaces, control groups, rights, filter of system calls, limits, variables."""
    await fixture.started("w1")
    find_ide = 'for p in /proc/[0-9]*; do [ "$(head -c 5 $p/cmdline)" = httpd ] && echo ${p#/proc/}; done'
    ide = (await run(fixture, "w1", find_ide)).strip()
    script = (
        "cd /proc/PID; for n in mnt net pid ipc uts cgroup user; do readlink ns/$n; done;"
        "grep -E '^(Uid|Gid|Groups|Cap|NoNewPrivs|Seccomp:)' status; cat cgroup limits oom_score_adj;"
        "cat attr/current; readlink root"
    )
    of_self, of_ide = [await run(fixture, "w1", script.replace("PID", pid)) for pid in ("self", ide)]
    assert of_self == of_ide
    assert "NoNewPrivs:\t1" in of_self and "Seccomp:\t2" in of_self and "CapBnd:\t0000000000000000" in of_self
    assert await run(fixture, "w1", "pwd; umask") == "/home/coder\n0022\n"
    own = await output(await start(fixture, "w1", ExecRequest("variables", ["env"])))
    ides = await run(fixture, "w1", f"tr '\\0' '\\n' < /proc/{ide}/environ")
    assert sorted(own.decode().splitlines()) == sorted(ides.splitlines()) and "HOME=/home/coder\n" in ides


async def test_a_terminal_echoes_resizes_and_ends(fixture: Commands) -> None:
    await fixture.started("w1")
    # An engine before 23 sets the size just after the start.
    script = "until stty size 2>/dev/null | grep .; do :; done; read x; stty size; echo $TERM; test -t 0"
    directory = await start(fixture, "w1", shell(script, tty=TerminalSize(24, 80)))
    await eventually(
        lambda: asyncio.to_thread(directory.size, STDOUT), "the first size", lambda size: size > 0
    )
    await exec_client.control(directory, "resize", rows=50, cols=132)
    await exec_client.send_input(directory, chunks(b"typed\n"))
    assert (await output(directory)).split() == [b"24", b"80", b"typed", b"50", b"132", b"xterm-256color"]
    assert (await record_of(directory)).exit_code == 0


async def test_control_characters_reach_the_terminal(fixture: Commands) -> None:
    """By default the engine detaches at Ctrl-P Ctrl-Q."""
    await fixture.started("w1")
    script = "stty raw -echo; echo ready; head -c 2 | od -An -tx1"
    directory = await start(fixture, "w1", shell(script, tty=TerminalSize(24, 80)))
    await eventually(lambda: asyncio.to_thread(directory.size, STDOUT), "raw mode", lambda size: size > 0)
    await exec_client.send_input(directory, chunks(b"\x10\x11"))
    assert (await output(directory)).split() == [b"ready", b"10", b"11"]


async def test_input_is_held_back_until_the_command_takes_it(fixture: Commands) -> None:
    await fixture.started("w1")
    directory = await start(fixture, "w1", shell("until [ -e go ]; do sleep 0.02; done; wc -c"))
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while sent < 64 << 20:
            yield bytes(1 << 20)
            sent += 1 << 20

    sender = asyncio.create_task(exec_client.send_input(directory, endless(), close=True))
    for _ in range(3):  # meanwhile it would have been read
        await run(fixture, "w1", "true")
    assert not sender.done() and sent < 16 << 20
    await fixture.inside("w1", "touch go")
    await sender
    assert await output(directory) == b"%d\n" % (64 << 20)


async def test_a_kill_ends_the_children_of_a_command(fixture: Commands) -> None:
    await fixture.started("w1")
    directory = await start(fixture, "w1", shell("sleep 1000 & sleep 1000 & echo ready; wait"))
    await eventually(lambda: asyncio.to_thread(directory.size, STDOUT), "its start", lambda size: size > 0)
    process = await process_of(directory)
    family = [process, *descendants(process.pid)]
    assert len(family) == 3
    await exec_client.control(directory, "kill", reason="Asked")
    record = await record_of(directory)
    assert (record.state, record.exit_code, record.reason) == (ExecState.KILLED, 137, "Asked")
    for each in family:
        await until(lambda each=each: not each.is_alive(), "its processes to end")


async def test_a_removed_container_ends_its_commands(fixture: Commands) -> None:
    await fixture.started("w1")
    directory = await start(fixture, "w1", shell(STUBBORN))
    await eventually(lambda: asyncio.to_thread(directory.size, STDOUT), "its start", lambda size: size > 0)
    fixture.engine.docker("rm", "--force", "codehub-ws-w1")
    record = await record_of(directory)
    assert (record.state, record.reason) == (ExecState.KILLED, "WorkspaceStopped")
    with pytest.raises(CommandRefused, match="it has stopped"):
        await start(fixture, "w1", shell("true"))


async def test_a_command_of_a_paused_container_is_refused_and_leaves_nothing(fixture: Commands) -> None:
    await fixture.started("w1")
    fixture.engine.docker("pause", "codehub-ws-w1")
    request = shell("echo once")
    try:
        with pytest.raises(CommandRefused, match="paused"):
            await start(fixture, "w1", request)
        assert await fixture.runtime.commands.find_command("w1", request.exec_id) is None
    finally:
        fixture.engine.docker("unpause", "codehub-ws-w1")
    assert await output(await start(fixture, "w1", request)) == b"once\n"


@pytest.mark.parametrize("how", ["killed", "stopped with live-restore"])
async def test_an_engine_that_leaves_its_containers_loses_their_commands(fixture: Commands, how: str) -> None:
    await fixture.started("w1")
    directory = await start(fixture, "w1", shell(STUBBORN))
    await eventually(lambda: asyncio.to_thread(directory.size, STDOUT), "its start", lambda size: size > 0)
    process, monitor = await process_of(directory), directory.read_record()
    assert monitor is not None
    try:
        if how == "killed":
            fixture.engine.kill()
        else:
            fixture.engine.enable_live_restore()
            await asyncio.to_thread(fixture.engine.stop)
        record = await record_of(directory)
        assert (record.state, record.reason) == (ExecState.LOST, "EngineUnavailable")
        assert await output(directory) == b"ready\n"
        for each in (process, monitor.monitor):
            await until(lambda each=each: not each.is_alive(), "its end")
        with pytest.raises(CommandRefused, match="does not answer"):
            await start(fixture, "w1", shell("true"))
    finally:
        fixture.engine.start()


async def test_a_stopped_engine_ends_its_commands_with_their_workspace(fixture: Commands) -> None:
    await fixture.started("w1")
    directory = await start(fixture, "w1", shell(STUBBORN))
    await eventually(lambda: asyncio.to_thread(directory.size, STDOUT), "its start", lambda size: size > 0)
    try:
        await asyncio.to_thread(fixture.engine.stop)
        record = await record_of(directory)
        assert (record.state, record.reason) == (ExecState.KILLED, "WorkspaceStopped")
    finally:
        fixture.engine.start()


@pytest.mark.parametrize("by", ["the next cleanup", "forgetting it"])
async def test_the_command_of_a_killed_monitor_is_lost_and_ends(fixture: Commands, by: str) -> None:
    await fixture.started("w1")
    directory = await start(fixture, "w1", shell(STUBBORN))
    await eventually(lambda: asyncio.to_thread(directory.size, STDOUT), "its start", lambda size: size > 0)
    process, record = await process_of(directory), directory.read_record()
    assert record is not None
    os.kill(record.monitor.pid, signal.SIGKILL)
    await exec_client.wait(directory)
    await eventually(
        lambda: asyncio.to_thread(directory.read_record),
        "it to be lost",
        lambda record: record is not None and record.state is ExecState.LOST,
    )
    if by == "the next cleanup":
        await fixture.runtime.clean_up()
    else:
        await fixture.runtime.commands.forget_command("w1", directory.path.name)
    await until(lambda: not process.is_alive(), "the command to end")
    assert exec_note.read(directory) is None


CALLER = """
import asyncio, sys
from ipaddress import IPv4Network
from pathlib import Path
from codehub.runtimes.docker.commands import DockerCommands
from codehub.runtimes.exec_request import ExecRequest

root, url, installation, exec_id = sys.argv[1:]
commands = DockerCommands(Path(root), url, installation)
script = "echo before; until [ -e go ]; do sleep 0.02; done; echo after"
request = ExecRequest(exec_id, ["sh", "-c", script])
asyncio.run(commands.start_command("w1", request))
print("started", flush=True)
sys.stdin.read()
"""


async def test_a_command_outlives_the_process_that_started_it(fixture: Commands) -> None:
    await fixture.started("w1")
    commands = fixture.runtime.commands
    arguments = [str(commands.root), commands.url, commands.installation_id, "by-a-caller"]
    caller = subprocess.Popen(
        [sys.executable, "-c", CALLER, *arguments], cwd=ROOT,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    assert caller.stdout is not None and caller.stdin is not None
    assert await asyncio.to_thread(caller.stdout.readline) == b"started\n"
    os.killpg(caller.pid, signal.SIGKILL)
    caller.wait()
    caller.stdin.close()
    caller.stdout.close()
    directory = commands.directory("w1", "by-a-caller")
    await eventually(
        lambda: asyncio.to_thread(directory.read, STDOUT, 0, 100),
        "output",
        lambda read: read[1] == b"before\n",
    )
    await fixture.inside("w1", "touch go")
    assert await output(directory) == b"before\nafter\n"
    assert (await record_of(directory)).exit_code == 0


async def test_hostile_variables_run_nothing_of_codehub(fixture: Commands) -> None:
    """They are only in the command's environment: neither the monitor's, nor any file, nor any argument."""
    spec = await fixture.started("w1")
    (spec.home / "trap.sh").write_text('id -u >> "$HOME/ran-as"\n')
    (spec.home / "own").write_text("#!/bin/sh\necho fake\n")
    (spec.home / "own").chmod(0o755)
    hostile = {
        "PATH": "/home/coder:/bin",
        "LD_PRELOAD": "/home/coder/none.so",
        "IFS": "/",
        "SECRET": "s3cret",
    }
    hostile |= {"PYTHONPATH": "/home/coder", "NODE_OPTIONS": "--require /home/coder/x.js"}
    hostile |= dict.fromkeys(("BASH_ENV", "ENV", "PYTHONSTARTUP", "GIT_SSH_COMMAND"), "/home/coder/trap.sh")
    directory = await start(
        fixture, "w1", ExecRequest("hostile", ["/bin/sh", "-c", "echo ready; read x; own"], env=hostile)
    )
    await eventually(lambda: asyncio.to_thread(directory.size, STDOUT), "its start", lambda size: size > 0)
    record = directory.read_record()
    assert record is not None
    monitor = Path("/proc", str(record.monitor.pid))
    assert b"s3cret" not in (monitor / "environ").read_bytes() + (monitor / "cmdline").read_bytes()
    for path in directory.path.iterdir():
        assert not path.is_file() or b"s3cret" not in path.read_bytes()
    await exec_client.send_input(directory, chunks(b"\n"), close=True)
    assert await output(directory) == b"ready\nfake\n"
    assert not (spec.home / "ran-as").exists()


async def test_the_output_of_a_background_process_does_not_delay_the_end_for_long(fixture: Commands) -> None:
    """The engine closes the streams of a command two seconds after its end."""
    spec = await fixture.started("w1")
    script = "(until [ -e go ]; do sleep 0.02; done; touch done) & echo early; exit 4"
    directory = await start(fixture, "w1", shell(script))
    assert await output(directory) == b"early\n"
    record = await record_of(directory)
    assert (record.state, record.exit_code) == (ExecState.EXITED, 4)
    (spec.home / "go").touch()
    await until((spec.home / "done").exists, "the background process to go on")


async def test_another_installation_runs_no_commands_here(fixture: Commands) -> None:
    await fixture.started("w1")
    other = fixture.other_runtime("another")
    with pytest.raises(CommandRefused, match="it has stopped"):
        await other.commands.start_command("w1", shell("true"))
    await other.close()


async def test_a_stopped_workspace_answers_why_it_runs_no_commands(fixture: Commands) -> None:
    await fixture.started("w1")
    directory = await start(fixture, "w1", shell("cat"))
    await fixture.runtime.delete("w1")
    record = directory.read_record()
    assert record is not None and record.state is ExecState.KILLED
    with pytest.raises(ControlFailed, match="has ended"):
        await exec_client.control(directory, "signal", number=2)


@pytest.mark.full
async def test_many_commands_at_once(fixture: Commands) -> None:
    await fixture.started("w1", pids=1024, cpus=2.0, memory_bytes=1 << 30)
    directories = await asyncio.gather(
        *(start(fixture, "w1", shell(f"echo {number}; exit {number % 50}")) for number in range(200))
    )
    for number, directory in enumerate(directories):
        assert await output(directory) == b"%d\n" % number
        assert await output(directory, STDERR) == b""
        assert (await record_of(directory)).exit_code == number % 50


async def test_commands_run_through_an_engine_on_loopback(fixture: Commands) -> None:
    await fixture.started("w1")
    async with relay(fixture.engine, lambda _request: None) as url:
        over_tcp = fixture.other_runtime(url=url)
        await over_tcp.commands.start_command("w1", ExecRequest("tcp", ["cat"]))
        directory = over_tcp.commands.directory("w1", "tcp")
        await exec_client.send_input(directory, chunks(b"over tcp"), close=True)
        assert await output(directory) == b"over tcp"
        assert (await record_of(directory)).exit_code == 0
        await over_tcp.close()


@pytest.mark.parametrize(
    ("request_line", "state"),
    [
        (b"GET /containers/", None),
        (b"POST /containers/", ExecState.EXITED),
        (b"POST /exec/", ExecState.EXITED),
    ],
)
async def test_a_caller_that_is_killed_leaves_no_command_or_one_with_a_monitor(
    fixture: Commands, request_line: bytes, state: ExecState | None
) -> None:
    await fixture.started("w1")
    callers: list[subprocess.Popen[bytes]] = []

    def kill_caller(received: bytes) -> None:
        if received.startswith(request_line):
            os.killpg(callers[0].pid, signal.SIGKILL)
            callers[0].wait()

    commands = fixture.runtime.commands
    async with relay(fixture.engine, kill_caller) as url:
        arguments = [str(commands.root), url, commands.installation_id, f"killed-{state}-{len(request_line)}"]
        callers.append(
            subprocess.Popen([sys.executable, "-c", CALLER, *arguments], cwd=ROOT, start_new_session=True)
        )
        await until(lambda: callers[0].poll() is not None, "the caller to be killed")
        directory = commands.directory("w1", arguments[-1])
        if state is None:
            assert not directory.path.exists()
            return
        await until(lambda: directory.size(STDOUT), "the command to start")
        await fixture.inside("w1", "touch go")
        assert (await record_of(directory)).state is state
        assert await output(directory) == b"before\nafter\n"


@asynccontextmanager
async def relay(engine: OwnEngine, heard: Callable[[bytes], None]) -> AsyncIterator[str]:
    """Relay to the engine from a port on loopback. `heard` gets the start of each request first."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_unix_connection(engine.url.removeprefix("unix://"))
        start = await reader.read(65536)
        heard(start)
        back.write(start)
        await asyncio.gather(_copy(reader, back), _copy(there, writer))
        writer.close()
        back.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, RuntimeError):  # the other end is gone
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
