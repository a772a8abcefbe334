"""Redis below the data directory, reachable only through a private Unix socket."""

import asyncio
import signal
import subprocess
import time
from pathlib import Path

import structlog

from codehub.embedded import server_processes, server_programs
from codehub.embedded.private_paths import make_dir, make_socket_dir, socket_dir, socket_mode
from codehub.embedded.server_account import EmbeddedError, server_account

logger = structlog.get_logger(__name__)

SOCKET_NAME = "redis.sock"
START_SECONDS = 30.0
ANSWER_SECONDS = 5.0
SHUTDOWN = [(signal.SIGTERM, 20.0), (signal.SIGKILL, 5.0)]


class EmbeddedRedis:
    """One Redis in `{data_dir}/redis`. If its data is lost, CodeHub rebuilds or sends it again.

    `clients` is a group that may connect, besides root and the server's own account.
    """

    name = "redis"

    def __init__(self, data_dir: Path, tools_dir: Path, *, clients: int | None = None) -> None:
        self._account = server_account()
        self._clients = clients
        self._tools_dir = tools_dir
        self._directory = data_dir.absolute() / "redis"
        self._socket = socket_dir(data_dir.absolute(), "redis", SOCKET_NAME) / SOCKET_NAME
        self.log_file = data_dir.absolute() / "logs" / "redis.log"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"unix://{self._socket}"

    async def start(self) -> None:
        """Start the server, and return when it answers."""
        make_dir(self._directory, 0o700, self._account)
        make_socket_dir(self._socket.parent, self._account, self._clients)
        make_dir(self.log_file.parent, 0o700)
        program = server_programs.redis_server(self._tools_dir, self._account)
        self._stop_orphans()
        # After a restart of the machine, the activity is at most a minute old.
        self.process = server_processes.spawn(
            [
                program, "--port", "0", "--unixsocket", self._socket,
                "--unixsocketperm", socket_mode(self._clients),
                "--dir", self._directory, "--dbfilename", "dump.rdb", "--save", "60", "1",
                "--appendonly", "no",
                "--stop-writes-on-bgsave-error", "no", "--daemonize", "no", "--loglevel", "warning",
            ],
            log=self.log_file, death_signal=signal.SIGTERM, account=self._account,
        )  # fmt: skip
        await self._wait_until_ready()

    def stop(self) -> None:
        if self.process is not None:
            server_processes.end_child(self.process, SHUTDOWN)
            self.process = None

    def _stop_orphans(self) -> None:
        if orphans := self._running():
            logger.info("ending the Redis of an earlier start", pids=orphans)
        if not server_processes.end_processes(self._running, SHUTDOWN):
            raise EmbeddedError(f"Redis processes {self._running()} of an earlier start do not end")
        self._socket.unlink(missing_ok=True)

    def _running(self) -> list[int]:
        return server_processes.processes_in_directory(self._directory, "redis-server")

    async def _wait_until_ready(self) -> None:
        assert self.process is not None
        deadline = time.monotonic() + START_SECONDS
        while not await self._answers_ping():
            if self.process.poll() is not None:
                raise EmbeddedError(f"Redis ended while it started:\n{server_processes.tail(self.log_file)}")
            if time.monotonic() > deadline:
                self.stop()
                raise EmbeddedError(
                    f"Redis did not answer in {START_SECONDS:.0f} s:\n{server_processes.tail(self.log_file)}"
                )
            await asyncio.sleep(0.01)

    async def _answers_ping(self) -> bool:
        try:
            reader, writer = await asyncio.open_unix_connection(self._socket)
        except OSError:
            return False
        try:
            writer.write(b"PING\r\n")
            async with asyncio.timeout(ANSWER_SECONDS):
                return await reader.readline() == b"+PONG\r\n"
        except (OSError, TimeoutError):
            return False
        finally:
            writer.close()


def url_of(data_dir: Path) -> str:
    """Return the URL of the embedded Redis of a data directory."""
    return f"unix://{socket_dir(data_dir.absolute(), 'redis', SOCKET_NAME) / SOCKET_NAME}"
