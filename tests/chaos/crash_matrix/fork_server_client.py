"""Client of the fork server that starts coordinators and storage jobs."""

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

from codehub.host.parent_death import die_with_parent
from tests.chaos.crash_matrix import fork_server
from tests.waiting import PATIENCE, wait_for


class ForkedProcess:
    """Process that need not be a child, held by a pidfd, since process ids are reused."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._handle = os.pidfd_open(pid)

    @property
    def alive(self) -> bool:
        return not select.select([self._handle], [], [], 0)[0]

    async def ends(self) -> bool:
        """Wait for the process to end; return False after a timeout."""
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
        assert await self.ends(), f"process {self.pid} survived SIGKILL"
        os.close(self._handle)


class ForkServer:
    """Running fork server, addressed by its socket."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    @classmethod
    @contextmanager
    def running(cls, path: Path) -> Iterator[Self]:
        environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
        process = subprocess.Popen(
            [sys.executable, "-m", fork_server.__name__, path],
            env=environment,
            preexec_fn=die_with_parent(signal.SIGKILL),
        )
        try:
            wait_for(path.exists, "the fork server to listen")
            yield cls(path)
        finally:
            process.kill()
            process.wait()

    def fork(self, request: dict[str, Any], output: Path) -> ForkedProcess:
        with output.open("ab") as log, fork_server.request_fork(self.path, request, [log.fileno()]) as pid:
            return ForkedProcess(pid)
