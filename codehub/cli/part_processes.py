"""Services for the parts of `codehub up`: processes that the part fork server forks."""

import asyncio
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Self

from codehub.cli import part_forkserver
from codehub.cli.part_main import load_all, prepare
from codehub.cli.part_users import PartUser
from codehub.embedded import server_processes
from codehub.host.parent_death import die_with_parent

UNKNOWN_EXIT_CODE = -signal.SIGTERM
"""Exit code of a part whose fork server was killed.

The kernel signals the part, and its code is lost.
"""


class ForkedProcess:
    """A process that was forked without exec, with the methods of `Popen` that we use."""

    def __init__(self, pid: int, pidfd: int, read_exit_code: Callable[[], int]) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._pidfd = pidfd
        self._read_exit_code = read_exit_code

    def poll(self) -> int | None:
        """Return the exit code, or None while the process runs."""
        return self._wait_within(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._wait_within(timeout)
        if code is None:
            raise subprocess.TimeoutExpired([part_forkserver.NAME], timeout or 0)
        return code

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            signal.pidfd_send_signal(self._pidfd, number)

    def pidfd(self) -> int:
        """Return a pidfd, which the caller closes."""
        return os.dup(self._pidfd)

    def _wait_within(self, seconds: float | None) -> int | None:
        if self.returncode is None and select.select([self._pidfd], [], [], seconds)[0]:
            self.returncode = self._read_exit_code()
            os.close(self._pidfd)
        return self.returncode


class PartForkServer:
    """The fork server as a service. It is forked at first, and started as a program if it dies.

    Call `fork` before there are threads or an event loop. The server shares the memory of every
    module that is loaded by then.
    """

    name = part_forkserver.NAME

    def __init__(self, requests: socket.socket, forked: ForkedProcess, logs_dir: Path) -> None:
        self.log_file = logs_dir / f"{self.name}.log"
        self.process: ForkedProcess | subprocess.Popen[bytes] | None = forked
        self._requests = requests

    @classmethod
    def fork(cls, logs_dir: Path, *, docker: bool) -> Self:
        """Fork the server.

        `docker` also loads the client of the Docker Engine, for all parts to share.
        """
        parts = load_all(docker=docker)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        hook = die_with_parent(signal.SIGTERM)
        pid = os.fork()
        if pid == 0:
            try:
                hook()
                os.setsid()
                _close_all_but(theirs.fileno())  # the lock of the data directory among them
                part_forkserver.serve(theirs, parts, prepare)
            finally:
                os._exit(0)
        theirs.close()
        return cls(ours, ForkedProcess(pid, os.pidfd_open(pid), lambda: _reap_child(pid)), logs_dir)

    async def start(self) -> None:
        """Start the server again if it died."""
        if self.process is not None and self.process.poll() is None:
            return
        self._requests.close()
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.process = _spawn_server(theirs, self.log_file)

    def stop(self) -> None:
        self._requests.close()
        if self.process is not None:
            server_processes.end_child(self.process, [(signal.SIGTERM, 5), (signal.SIGKILL, 5)])

    async def start_part(
        self, name: str, environment: Mapping[str, str], log: Path, user: PartUser | None = None
    ) -> ForkedProcess:
        """Start a part that writes to `log` and becomes `user`; return once its process exists."""
        with log.open("ab") as output:
            return await self._fork(name, environment, output.fileno(), output.fileno(), user)

    async def run_program(self, name: str, environment: Mapping[str, str]) -> tuple[int, bytes]:
        """Run a short program to its end; return its exit code and its standard output."""
        reader, writer = os.pipe()
        with os.fdopen(reader, "rb") as output:
            try:
                process = await self._fork(name, environment, writer, 2)
            finally:
                os.close(writer)
            try:
                result = await asyncio.to_thread(output.read)
            except asyncio.CancelledError:
                process.send_signal(signal.SIGTERM)
                raise
            return await asyncio.to_thread(process.wait), result

    async def _fork(
        self,
        name: str,
        environment: Mapping[str, str],
        output: int,
        errors: int,
        user: PartUser | None = None,
    ) -> ForkedProcess:
        request = {"name": name, "environment": dict(environment), "user": user and asdict(user)}
        message = json.dumps(request).encode()
        status, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            socket.send_fds(self._requests, [message], [output, errors, theirs.fileno()])
        pid, descriptors, *_ = await asyncio.to_thread(socket.recv_fds, status, 64, 1)
        if not descriptors:
            status.close()
            raise OSError(f"the part fork server ended before it started {name}; see {self.log_file}")
        return ForkedProcess(int(pid), descriptors[0], lambda: _receive_exit_code(status))


class Part:
    """Service that runs `codehub serve ...` in a process that ends with its supervisor."""

    def __init__(
        self,
        name: str,
        server: PartForkServer,
        environment: Mapping[str, str],
        logs_dir: Path,
        internal_socket: Path,
        stop_timeout: float = 30,
        user: PartUser | None = None,
    ) -> None:
        self.name = name
        self.internal_socket = internal_socket
        self.log_file = logs_dir / f"{name}.log"
        self.process: ForkedProcess | None = None
        self._server = server
        self._environment = environment
        self._stop_timeout = stop_timeout
        self._user = user

    async def start(self) -> None:
        """Start the part. Workers of an earlier one may still hold its internal socket."""
        self.internal_socket.unlink(missing_ok=True)
        self.process = await self._server.start_part(self.name, self._environment, self.log_file, self._user)

    def stop(self) -> None:
        if self.process is not None:
            server_processes.end_child(
                self.process, [(signal.SIGTERM, self._stop_timeout), (signal.SIGKILL, 5)]
            )


def _spawn_server(requests: socket.socket, log_file: Path) -> subprocess.Popen[bytes]:
    with log_file.open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", part_forkserver.__name__], cwd="/", start_new_session=True,
            stdin=requests.fileno(), stdout=log, stderr=log, preexec_fn=die_with_parent(signal.SIGTERM),
        )  # fmt: skip


def _close_all_but(kept: int) -> None:
    os.closerange(3, kept)
    os.closerange(kept + 1, os.sysconf("SC_OPEN_MAX"))


def _reap_child(pid: int) -> int:
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


def _receive_exit_code(status: socket.socket) -> int:
    with status:
        return int(status.recv(64) or UNKNOWN_EXIT_CODE)
