"""PostgreSQL below the data directory, reachable only through a private Unix socket (ADR 0006)."""

import asyncio
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

import structlog

from codehub.embedded import server_processes, server_programs
from codehub.embedded.postgres_log import exit_cause
from codehub.embedded.private_paths import (
    make_dir,
    make_socket_dir,
    socket_dir,
    socket_mode,
    write_private,
)
from codehub.embedded.server_account import EmbeddedError, server_account
from codehub.host.durable_files import fsync_path

logger = structlog.get_logger(__name__)

USER = DATABASE = "codehub"
SOCKET_NAME = ".s.PGSQL.5432"
START_SECONDS = 120.0  # crash recovery of a busy database takes its time
STATUS_LINE = 8
"""The line of postmaster.pid that holds the status."""
FAST_SHUTDOWN = [(signal.SIGINT, 60.0), (signal.SIGQUIT, 15.0), (signal.SIGKILL, 5.0)]

SETTINGS = {
    "listen_addresses": "",
    "max_connections": "200",
    "shared_buffers": "32MB",
    "max_logical_replication_workers": "0",
    "max_pred_locks_per_transaction": "10",  # the least; only serializable transactions take any
    "max_wal_size": "512MB",
    "log_min_messages": "warning",
    "log_checkpoints": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
    # A server that outlives CodeHub notices clients that have died.
    "client_connection_check_interval": "5s",
}
UNSAFE_SETTINGS = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}


class EmbeddedPostgres:
    """One PostgreSQL cluster in `{data_dir}/postgres`.

    `clients` is a group that may connect, besides root and the server's own account.
    `durable=False` is only for tests: it trades crash safety for speed.
    """

    name = "postgres"

    def __init__(
        self, data_dir: Path, tools_dir: Path, *, durable: bool = True, clients: int | None = None
    ) -> None:
        self._account = server_account()
        self._data_dir = data_dir.absolute()
        self._tools_dir = tools_dir
        self._durable = durable
        self._clients = clients
        self.cluster = self._data_dir / "postgres"
        self.socket_dir = socket_dir(self._data_dir, "pg", SOCKET_NAME)
        self.log_file = self._data_dir / "logs" / "postgres.log"
        self.process: subprocess.Popen[bytes] | None = None
        self._log_start = 0
        """Offset of the current run in the log, which is appended to."""

    @property
    def url(self) -> str:
        """URL for the parts of CodeHub."""
        return self.database_url(DATABASE)

    def database_url(self, name: str) -> str:
        return _url(self.socket_dir, self._password(), name)

    async def start(self) -> None:
        """Start the server, and return when it accepts connections.

        Create the cluster if it is missing.
        """
        if not self.socket_dir.is_relative_to(self._data_dir):
            logger.warning("the data directory's path is long", sockets=str(self.socket_dir))
        if not self._account.can_enter(self._data_dir):
            raise EmbeddedError(
                f"PostgreSQL runs as user id {self._account.uid}, which may not enter {self._data_dir}: "
                "choose another --data-dir, or allow it on each directory above (chmod o+x)"
            )
        make_socket_dir(self.socket_dir, self._account, self._clients)
        make_dir(self.log_file.parent, 0o700)
        home = server_programs.postgres_home(self._cluster_version(), self._tools_dir, self._account)
        self._stop_orphans()
        if not self.cluster.exists():
            self._create_cluster(home)
        self._log_start = self.log_file.stat().st_size if self.log_file.exists() else 0
        self.process = server_processes.spawn(
            [
                home / "bin" / "postgres", "-D", self.cluster, "-k", self.socket_dir,
                *self._options(self.cluster),
            ],
            log=self.log_file, death_signal=signal.SIGINT, account=self._account,
        )  # fmt: skip
        await self._wait_until_ready()

    def exit_cause(self) -> str | None:
        """Return why the server ended, or None if its log names no cause."""
        try:
            with self.log_file.open("rb") as file:
                # If the log was truncated meanwhile, read it from its beginning.
                file.seek(self._log_start if self._log_start <= self.log_file.stat().st_size else 0)
                log_of_run = file.read().decode(errors="replace")
        except OSError:
            return None
        return exit_cause(log_of_run, self.cluster)

    def stop(self) -> None:
        """Shut down fast.

        Open transactions are rolled back, and everything committed is on disk.
        """
        if self.process is not None:
            server_processes.end_child(self.process, FAST_SHUTDOWN)
            self.process = None

    def _options(self, cluster: Path) -> list[str]:
        settings = SETTINGS | {"unix_socket_permissions": socket_mode(self._clients)}
        if not self._durable:
            settings = settings | UNSAFE_SETTINGS
        if int((cluster / "PG_VERSION").read_text()) >= 18:
            settings = settings | {"io_method": "sync"}  # instead of three processes that wait for work
        return [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]

    def _password(self) -> str:
        path = self._data_dir / "postgres.password"
        try:
            return path.read_text()
        except FileNotFoundError:
            if self.cluster.exists():
                raise EmbeddedError(f"{path} is missing; it holds the password of {self.cluster}") from None
        write_private(path, secrets.token_urlsafe(32))
        return path.read_text()

    def _cluster_version(self) -> str | None:
        if not self.cluster.exists():
            return None
        try:
            return (self.cluster / "PG_VERSION").read_text().strip()
        except FileNotFoundError:
            raise EmbeddedError(f"{self.cluster} is not a PostgreSQL data directory") from None

    def _create_cluster(self, home: Path) -> None:
        """Run initdb in a staging directory and rename it.

        A killed first start leaves no incomplete cluster.
        """
        staged = self.cluster.with_name("postgres.new")
        shutil.rmtree(staged, ignore_errors=True)
        make_dir(staged, 0o700, self._account)
        password_file = self.socket_dir / "initdb.password"
        write_private(password_file, self._password())
        self._account.give(password_file)
        command: list[str | Path] = [
            home / "bin" / "initdb", "-D", staged, "-U", USER, f"--pwfile={password_file}",
            "--auth-local=scram-sha-256", "--auth-host=reject", "--encoding=UTF8", "--locale=C",
        ]  # fmt: skip
        if not self._durable:
            command.append("--no-sync")
        try:
            self._run("initdb", command)
        finally:
            password_file.unlink()
        single: list[str | Path] = [
            home / "bin" / "postgres",
            "--single",
            "-D",
            staged,
            *self._options(staged),
            "template1",
        ]
        self._run("first statement", single, f"CREATE DATABASE {DATABASE};\n")
        staged.rename(self.cluster)
        fsync_path(self._data_dir, follow_symlinks=True)

    def _run(self, what: str, command: Sequence[str | Path], given: str = "") -> None:
        outcome = self._account.run(command, given=given)
        output = outcome.stderr.strip() or outcome.stdout.strip()
        # A server in single-user mode reports a failed statement and goes on to its end.
        if outcome.returncode != 0 or "ERROR:" in outcome.stderr:
            cause = exit_cause(output, self.cluster)
            raise EmbeddedError(f"PostgreSQL's {what} failed: {output}" + (f"\n{cause}" if cause else ""))

    def _stop_orphans(self) -> None:
        """Stop a server whose `up` was killed, and remove the files that a killed server leaves.

        The caller holds the lock of the data directory, so nothing uses a server found here.
        """
        if orphans := self._running():
            logger.info("ending the PostgreSQL of an earlier start", pids=orphans)
        if not server_processes.end_processes(self._running, FAST_SHUTDOWN):
            raise EmbeddedError(f"PostgreSQL processes {self._running()} of an earlier start do not end")
        # Lock files name process ids, which other processes may have by now.
        (self.cluster / "postmaster.pid").unlink(missing_ok=True)
        for leftover in self.socket_dir.glob(f"{SOCKET_NAME}*"):
            leftover.unlink()

    def _running(self) -> list[int]:
        return server_processes.processes_in_directory(self.cluster, "postgres")

    async def _wait_until_ready(self) -> None:
        """Wait until the server reports in postmaster.pid that it is ready, as `pg_ctl` does."""
        assert self.process is not None
        deadline = time.monotonic() + START_SECONDS
        while not self._is_ready():
            if self.process.poll() is not None:
                cause = self.exit_cause() or "PostgreSQL ended while it started."
                raise EmbeddedError(f"{cause}\nIts log ends with:\n{server_processes.tail(self.log_file)}")
            if time.monotonic() > deadline:
                self.stop()
                log_end = server_processes.tail(self.log_file)
                raise EmbeddedError(f"PostgreSQL was not ready within {START_SECONDS:.0f} s:\n{log_end}")
            await asyncio.sleep(0.01)

    def _is_ready(self) -> bool:
        try:
            lines = (self.cluster / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        return len(lines) >= STATUS_LINE and lines[STATUS_LINE - 1].strip() == "ready"


def url_of(data_dir: Path) -> str | None:
    """Return the URL of the embedded database of a data directory, or None if there is none."""
    try:
        password = (data_dir / "postgres.password").read_text()
    except FileNotFoundError:
        return None
    return _url(socket_dir(data_dir.absolute(), "pg", SOCKET_NAME), password, DATABASE)


def _url(sockets: Path, password: str, database: str) -> str:
    return f"postgresql://{USER}:{password}@/{database}?host={quote(str(sockets), safe='/')}"
