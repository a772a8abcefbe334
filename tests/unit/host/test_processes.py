"""Processes are identified across reuse of PIDs, and found by user, argument and environment."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from codehub.host.processes import (
    ProcessId,
    descendants,
    processes_of_user,
    processes_with_argument,
    processes_with_variable,
)
from tests.waiting import wait_for

ODD, HEADLESS = f"an (odd) argument of {os.getpid()}", f"headless, of {os.getpid()}"
"""Arguments that no process of another test run has."""


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    # A parent with a child, and a name with parentheses, which /proc/PID/stat does not escape.
    code = "import subprocess; subprocess.run(['sleep', '300'])"
    process = subprocess.Popen([sys.executable, "-c", code, ODD], env={"MARK": "here", "PATH": os.defpath})
    yield process
    for child in descendants(process.pid):
        child.send(signal.SIGKILL)
    process.kill()
    process.wait()


def wait_for_child(pid: int) -> dict[ProcessId, int]:
    """Wait until the child has started its own program.

    Before that it has its parent's arguments.
    """

    def started() -> dict[ProcessId, int] | None:
        found = descendants(pid)
        names = [Path(f"/proc/{child.pid}/cmdline").read_bytes() for child in found]
        return found if names and all(name.startswith(b"sleep\0") for name in names) else None

    return wait_for(started, "the child", every=0.001) or {}


def test_a_process_keeps_its_identity_until_it_ends(sleeper: subprocess.Popen[bytes]) -> None:
    process = ProcessId.of(sleeper.pid)
    assert process is not None and process.is_alive()
    assert not ProcessId(process.pid, process.started + 1).is_alive()
    wait_for_child(sleeper.pid)
    assert process.send(signal.SIGKILL)
    sleeper.wait()
    assert not process.is_alive()
    assert not process.send(signal.SIGKILL)


def test_a_signal_never_reaches_a_later_process_with_the_same_pid(sleeper: subprocess.Popen[bytes]) -> None:
    process = ProcessId.of(sleeper.pid)
    assert process is not None
    assert not ProcessId(process.pid, process.started - 1).send(signal.SIGKILL)
    assert process.is_alive()


def test_a_zombie_is_dead(sleeper: subprocess.Popen[bytes]) -> None:
    wait_for_child(sleeper.pid)
    for child in descendants(sleeper.pid):
        child.send(signal.SIGKILL)
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert ProcessId.of(sleeper.pid) is None


def test_descendants_have_a_depth(sleeper: subprocess.Popen[bytes]) -> None:
    (child,) = wait_for_child(sleeper.pid)
    below_me = descendants(os.getpid())
    parent = ProcessId.of(sleeper.pid)
    assert parent is not None
    assert below_me[parent] == 1 and below_me[child] == 2


def test_processes_are_found_by_argument_variable_and_user(sleeper: subprocess.Popen[bytes]) -> None:
    wait_for_child(sleeper.pid)
    assert [process.pid for process in processes_with_argument(ODD)] == [sleeper.pid]
    assert sleeper.pid in {process.pid for process in processes_with_variable("MARK=here")}
    assert sleeper.pid in {process.pid for process in processes_of_user(os.getuid())}
    assert processes_of_user(4_000_000_000) == []


@pytest.fixture
def headless() -> Iterator[subprocess.Popen[bytes]]:
    """A process whose main thread has ended while another thread runs."""
    code = (
        "import ctypes, threading, time\n"
        "threading.Thread(target=time.sleep, args=[300]).start()\n"
        "ctypes.CDLL(None).pthread_exit(None)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, HEADLESS], env={"MARK": HEADLESS, "PATH": os.defpath}
    )
    stat = Path(f"/proc/{process.pid}/stat")
    wait_for(lambda: ") Z " in stat.read_text(), "the main thread to end")
    yield process
    process.kill()
    process.wait()


def test_a_process_without_its_main_thread_lives_is_found_and_can_be_killed(
    headless: subprocess.Popen[bytes],
) -> None:
    process = ProcessId.of(headless.pid)
    assert process is not None and process in descendants(os.getpid())
    assert processes_with_variable(f"MARK={HEADLESS}") == [process]
    assert processes_with_argument(HEADLESS) == [process]
    assert process.send(signal.SIGKILL)
    headless.wait()
    assert not process.is_alive()
