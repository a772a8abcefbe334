"""Workers of one part."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from codehub.embedded.server_processes import wait_until
from tests.services import descendants

PROGRAM = """
import signal, sys
from codehub.cli.workers import run_workers
def work(number):
    signal.pause()
run_workers(2, work)
"""
FAILING = """
from codehub import log
log.configure("gateway")
from codehub.cli import workers
workers.RESTART_PAUSE = 0.01
workers.run_workers(2, lambda number: 1 / 0)
"""


def start(program: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE)


def test_a_worker_that_dies_is_replaced_and_sigterm_ends_all() -> None:
    parent = start(PROGRAM)
    try:
        assert wait_until(lambda: len(descendants(parent.pid)) == 2, 30)
        first = descendants(parent.pid)
        os.kill(first[0], signal.SIGKILL)
        assert wait_until(lambda: len(set(descendants(parent.pid)) - set(first)) == 1, 30)
        workers = descendants(parent.pid)
        parent.terminate()
        assert parent.wait(30) == 0
        assert not any(Path(f"/proc/{pid}").exists() for pid in workers)
    finally:
        parent.kill()
        parent.communicate()


HANGS_ONCE = """
from codehub import log
log.configure("gateway")
import asyncio, os
from codehub.cli import workers
from codehub.cli.heartbeats import Heartbeats
workers.CHECK_SECONDS = workers.RESTART_PAUSE = 0.01
heartbeats = Heartbeats(1, max_silent_checks=60)
async def work():
    async with heartbeats.beating(0):
        await asyncio.sleep(0)  # for the first beat
        print(os.getpid(), flush=True)
        await asyncio.sleep(1e6)
workers.run_workers(1, lambda number: asyncio.run(work()), heartbeats)
"""


def test_a_single_worker_that_hangs_is_replaced() -> None:
    parent = subprocess.Popen([sys.executable, "-c", HANGS_ONCE], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    try:
        first = int(parent.stdout.readline())
        os.kill(first, signal.SIGSTOP)
        assert int(parent.stdout.readline()) != first
        assert not Path(f"/proc/{first}").exists()
    finally:
        for pid in (*descendants(parent.pid), parent.pid):
            os.kill(pid, signal.SIGKILL)
        parent.communicate()


STOPPED_AT_BIRTH = """
import os, signal
from codehub.cli import workers
fork = os.fork
def fork_and_be_stopped():
    pid = fork()
    if pid:
        os.kill(pid, signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
    return pid
os.fork = fork_and_be_stopped
workers.run_workers(2, lambda number: signal.pause())
"""


def test_a_stop_right_after_the_fork_is_not_lost() -> None:
    for _ in range(5):
        parent = start(STOPPED_AT_BIRTH)
        try:
            assert parent.wait(30) == 0
        finally:
            parent.kill()
            parent.communicate()


def test_workers_that_keep_dying_end_the_part() -> None:
    parent = start(FAILING)
    _, output = parent.communicate(timeout=60)
    assert parent.returncode == 1
    assert b"WorkersError" in output
    assert b"ZeroDivisionError" in output
