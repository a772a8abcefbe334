"""Dead services are started again; processes of an earlier `up` are ended."""

import asyncio
import contextlib
import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from codehub.cli.errors import CommandError
from codehub.cli.supervisor import Supervisor, end_stale_processes
from codehub.embedded import server_processes
from codehub.embedded.server_account import own_account
from codehub.host.processes import ProcessId, boot_id

SLEEP = [sys.executable, "-c", "import signal; print('up', flush=True); signal.pause()"]


class Sleeper:
    """Minimal service: a process that sleeps."""

    def __init__(self, directory: Path, name: str, command: list[str] = SLEEP) -> None:
        self.name = name
        self.log_file = directory / f"{name}.log"
        self.process: subprocess.Popen[bytes] | None = None
        self.starts = 0
        self.ended: list[str] = []
        self._command = command

    async def start(self) -> None:
        self.starts += 1
        self.process = server_processes.spawn(
            self._command, log=self.log_file, death_signal=signal.SIGKILL, account=own_account()
        )

    def stop(self) -> None:
        assert self.process is not None
        self.ended.append(self.name)
        server_processes.end_child(self.process, [(signal.SIGKILL, 5)])


async def until(condition: object) -> None:
    async with asyncio.timeout(10):
        while not condition():  # type: ignore[operator]
            await asyncio.sleep(0.01)


async def test_a_part_that_dies_is_started_again(tmp_path: Path) -> None:
    supervisor, part = Supervisor(tmp_path), Sleeper(tmp_path, "part")
    await supervisor.start(part)
    supervisor.restart_dead_services()
    try:
        assert part.process is not None
        first = part.process.pid
        os.kill(first, signal.SIGKILL)
        await until(lambda: part.starts == 2)
        recorded = json.loads((tmp_path / "children.json").read_text())
        await until(lambda: json.loads((tmp_path / "children.json").read_text())["part"]["pid"] != first)
        assert recorded.keys() == {"part"}
    finally:
        await supervisor.stop()
    assert part.process.poll() is not None
    assert not (tmp_path / "children.json").exists()


@pytest.mark.parametrize(
    "why", [OSError(errno.ENOSPC, "No space left on device"), asyncpg.TooManyConnectionsError("too many")]
)
async def test_a_part_that_cannot_be_started_is_tried_again(tmp_path: Path, why: Exception) -> None:
    class FailsToStart(Sleeper):
        async def start(self) -> None:
            await super().start()
            if self.starts == 2:
                assert self.process is not None
                server_processes.end_child(self.process, [(signal.SIGKILL, 5)])
                raise why

    supervisor, part = Supervisor(tmp_path), FailsToStart(tmp_path, "part")
    await supervisor.start(part)
    supervisor.restart_dead_services()
    try:
        assert part.process is not None
        os.kill(part.process.pid, signal.SIGKILL)
        await until(lambda: part.starts == 3)
    finally:
        await supervisor.stop()


async def test_a_log_that_cannot_be_rotated_is_truncated_and_others_are_rotated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("codehub.cli.supervisor.LOG_CHECK_SECONDS", 0.01)
    monkeypatch.setattr("codehub.cli.supervisor.MAX_LOG_BYTES", 100)
    supervisor, parts = Supervisor(tmp_path), [Sleeper(tmp_path, name) for name in ("one", "two")]
    (tmp_path / "one.log.1").mkdir()
    for part in parts:
        await supervisor.start(part)
    supervisor.restart_dead_services()
    try:
        for _ in range(2):
            for part in parts:
                with part.log_file.open("a") as log_file:
                    log_file.write("x" * 200)
            await until(lambda: all(part.log_file.stat().st_size <= 100 for part in parts))
    finally:
        await supervisor.stop()
    assert "x" in (tmp_path / "two.log.1").read_text()


async def test_parts_end_in_the_reverse_order_of_their_start(tmp_path: Path) -> None:
    supervisor, order = Supervisor(tmp_path), []
    for name in ("database", "coordinator", "gateway"):
        service = Sleeper(tmp_path, name)
        service.ended = order
        await supervisor.start(service)
    await supervisor.stop()
    assert order == ["gateway", "coordinator", "database"]


async def test_a_part_that_dies_while_it_starts_is_an_error_with_the_end_of_its_log(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path)
    part = Sleeper(tmp_path, "part", [sys.executable, "-c", "raise SystemExit('no such setting')"])
    await supervisor.start(part)
    assert part.process is not None
    part.process.wait(10)
    with pytest.raises(CommandError, match=r"part ended with exit code 1(.|\n)*no such setting"):
        supervisor.raise_if_any_ended()
    await supervisor.stop()


@contextlib.contextmanager
def unrelated_process() -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen(SLEEP, stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    try:
        yield child
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


def start_time(pid: int) -> int:
    process = ProcessId.of(pid)
    assert process is not None
    return process.started


def test_a_process_of_a_killed_up_is_ended_even_if_its_main_thread_has_ended(tmp_path: Path) -> None:
    """The kernel shows it as a zombie although its other threads go on."""
    code = (
        "import ctypes, threading, time\n"
        "threading.Thread(target=time.sleep, args=[300]).start()\n"
        "ctypes.CDLL(None).pthread_exit(None)"
    )
    child = subprocess.Popen([sys.executable, "-c", code])
    try:
        stat = Path(f"/proc/{child.pid}/stat")
        assert server_processes.wait_until(lambda: ") Z " in stat.read_text(), 10)
        entry = {"pid": child.pid, "birth": start_time(child.pid), "boot": boot_id()}
        (tmp_path / "children.json").write_text(json.dumps({"api": entry}))
        end_stale_processes(tmp_path, ("api",))
        assert child.wait(5) == -signal.SIGTERM
    finally:
        child.kill()
        child.wait()


def test_processes_of_a_killed_up_are_ended(tmp_path: Path) -> None:
    with unrelated_process() as child:
        entry = {"pid": child.pid, "birth": start_time(child.pid), "boot": boot_id()}
        (tmp_path / "children.json").write_text(json.dumps({"api": entry}))
        end_stale_processes(tmp_path, ("api",))
        assert child.wait(5) == -signal.SIGTERM


def test_a_recycled_process_id_is_left_alone(tmp_path: Path) -> None:
    with unrelated_process() as child:
        entry = {"pid": child.pid, "birth": 1, "boot": boot_id()}
        (tmp_path / "children.json").write_text(json.dumps({"api": entry}))
        end_stale_processes(tmp_path, ("api",))
        assert child.poll() is None


@pytest.mark.parametrize("boot", [{}, {"boot": "00000000-0000-4000-8000-000000000000"}])
def test_a_process_of_another_boot_is_left_alone(tmp_path: Path, boot: dict[str, str]) -> None:
    """The first processes of each boot may have the same ids and ticks.

    Earlier versions recorded no boot.
    """
    with unrelated_process() as child:
        entry = {"pid": child.pid, "birth": start_time(child.pid), **boot}
        (tmp_path / "children.json").write_text(json.dumps({"api": entry}))
        end_stale_processes(tmp_path, ("api",))
        assert child.poll() is None
    assert not (tmp_path / "children.json").exists()


async def test_a_later_start_ends_the_recorded_processes(tmp_path: Path) -> None:
    supervisor, part = Supervisor(tmp_path), Sleeper(tmp_path, "api")
    await supervisor.start(part)
    try:
        assert part.process is not None
        end_stale_processes(tmp_path, ("api",))
        assert part.process.wait(5) == -signal.SIGTERM
    finally:
        await supervisor.stop()


def test_children_end_when_their_supervisor_is_killed(tmp_path: Path) -> None:
    program = (
        "import signal, sys; from pathlib import Path;"
        "from codehub.embedded import server_processes;"
        "from codehub.embedded.server_account import own_account;"
        "child = server_processes.spawn([sys.executable, '-c', 'import signal; signal.pause()'],"
        "    log=Path(sys.argv[1]), death_signal=signal.SIGTERM, account=own_account());"
        "print(child.pid, flush=True); signal.pause()"
    )
    parent = subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "log")], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert server_processes.wait_until(lambda: ProcessId.of(child) is None, 10)
