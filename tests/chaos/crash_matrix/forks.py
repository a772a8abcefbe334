"""Coordinators as processes, forked from one that has loaded everything already."""

import asyncio
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from codehub.host.child_process import die_with_parent
from tests.chaos.crash_matrix import zygote
from tests.waiting import PATIENCE, wait_for


class Process:
    """A process that may not be our child: known by its handle, so that its number cannot be mistaken."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._handle = os.pidfd_open(pid)

    @property
    def alive(self) -> bool:
        return not select.select([self._handle], [], [], 0)[0]

    async def ends(self) -> bool:
        """Wait for its end; return False when it does not come."""
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._handle, ended.set)
        try:
            async with asyncio.timeout(PATIENCE):
                await ended.wait()
        except TimeoutError:
            return False
        finally:
            loop.remove_reader(self._handle)
        return True

    async def kill(self) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, signal.SIGKILL)
        assert await self.ends(), f"process {self.pid} does not end"
        os.close(self._handle)


class Zygote:
    def __init__(self, path: Path) -> None:
        self.path = str(path)

    @classmethod
    @contextmanager
    def running(cls, path: Path) -> Iterator[Self]:
        environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
        process = subprocess.Popen(
            [sys.executable, "-m", zygote.__name__, path],
            env=environment,
            preexec_fn=die_with_parent(signal.SIGKILL),
        )
        try:
            wait_for(path.exists, "the zygote to listen")
            yield cls(path)
        finally:
            process.kill()
            process.wait()

    def fork(self, request: dict[str, Any], output: Path) -> Process:
        with output.open("ab") as log, zygote.asked(self.path, request, [log.fileno()]) as pid:
            return Process(pid)
