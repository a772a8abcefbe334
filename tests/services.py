"""Real services for tests: PostgreSQL, Redis and a whole `codehub up`."""

import asyncio
import contextlib
import itertools
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any, Self, TypeVar

import asyncpg
import httpx

from codehub import internal_http
from codehub.database import migrate
from codehub.embedded.postgres import EmbeddedPostgres
from codehub.embedded.redis import EmbeddedRedis
from codehub.host.parent_death import die_with_parent
from codehub.settings import default_tools_dir
from tests.waiting import PATIENCE, wait_for

T = TypeVar("T")
TEMPLATE = "codehub_template"
TOOLS_DIR = Path(os.environ.get("CODEHUB_TOOLS_DIR", default_tools_dir()))


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine from synchronous code, without touching the tests' event loops."""
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(work)
    finally:
        loop.close()


def short_temp_dir(within: Path = Path("/tmp")) -> Path:
    """Make a data directory that system users may enter, with a path short enough for sockets."""
    path = Path(tempfile.mkdtemp(prefix="ch-", dir=within))
    path.chmod(0o711)
    return path


_ports = itertools.count(os.getpid() * 1_021)


def free_port() -> int:
    """Return a port below the kernel's ephemeral range.

    Each test process starts at another port.
    """
    while True:
        port = 12_000 + next(_ports) % 20_000
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))
            return port


class Services:
    """PostgreSQL and Redis for a whole test session."""

    def __init__(self) -> None:
        self.data_dir = short_temp_dir()
        self.postgres = EmbeddedPostgres(self.data_dir, TOOLS_DIR, durable=False)
        self.redis = EmbeddedRedis(self.data_dir, TOOLS_DIR)
        self._numbers = itertools.count(1)
        self._has_template = False

    @classmethod
    @contextlib.contextmanager
    def running(cls) -> Iterator[Self]:
        services = cls()
        try:
            run(services.postgres.start())
            run(services.redis.start())
            yield services
        finally:
            services.redis.stop()
            services.postgres.stop()
            shutil.rmtree(services.data_dir)

    async def empty_database(self) -> str:
        """Create a database without a schema and return its URL."""
        return await self._create("template1")

    async def migrated_database(self) -> str:
        """Create a database with CodeHub's schema, as a copy of a template, and return its URL."""
        if not self._has_template:
            await self._execute(f"CREATE DATABASE {TEMPLATE}")
            await migrate.upgrade(self.postgres.database_url(TEMPLATE))
            self._has_template = True
        return await self._create(TEMPLATE)

    async def drop_database(self, url: str) -> None:
        name = url.split("@/")[1].split("?")[0]
        await self._execute(f"DROP DATABASE {name} WITH (FORCE)")

    async def _create(self, template: str) -> str:
        name = f"codehub_{next(self._numbers)}"
        await self._execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        return self.postgres.database_url(name)

    async def _execute(self, statement: str) -> None:
        connection = await asyncpg.connect(self.postgres.database_url("postgres"))
        try:
            await connection.execute(statement)
        finally:
            await connection.close()


class System:
    """A whole `codehub up`, in its own data directory."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self.data_dir = short_temp_dir()
        self.port = free_port()
        self.base_url = f"http://localhost:{self.port}"
        self.admin_username = "admin"
        self.admin_password = ""
        self.output = ""
        self.process: subprocess.Popen[str] | None = None
        self._environment = dict(environment or {})

    def environment(self) -> dict[str, str]:
        cleared = {
            name: value for name, value in os.environ.items() if name not in ("DATABASE_URL", "REDIS_URL")
        }
        return cleared | {"CODEHUB_DATA_DIR": str(self.data_dir), "PORT": str(self.port)} | self._environment

    def start(self) -> Self:
        """Start `codehub up` and return once it reports that it is ready."""
        self.process = self.command("up", "--runtime", "process")
        assert self.process.stdout is not None
        self.output = ""
        os.set_blocking(self.process.stdout.fileno(), False)
        wait_for(self._read_until_ready, "`codehub up` to be ready", every=0.01)
        if found := re.search(r"password:\s+(\S+)", self.output):
            self.admin_password = found.group(1)
        return self

    def command(self, *arguments: str) -> subprocess.Popen[str]:
        """Start `codehub ...` for this system's data directory; it ends with this process."""
        return subprocess.Popen(
            [sys.executable, "-m", "codehub", *arguments], env=self.environment(), text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            start_new_session=True, preexec_fn=die_with_parent(signal.SIGTERM),
        )  # fmt: skip

    def stop(self) -> int:
        """Send SIGTERM, and return the exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE)

    def pids(self) -> dict[str, int]:
        """Return the process id of each process that `up` supervises."""
        children: dict[str, Any] = json.loads((self.data_dir / "run" / "children.json").read_text())
        return {name: entry["pid"] for name, entry in children.items()}

    def kill9(self, *, everything: bool = True) -> None:
        """Send SIGKILL to `up` and all it supervises, but not to workspaces and jobs."""
        assert self.process is not None
        victims = [self.process.pid]
        for name, pid in self.pids().items() if everything else ():
            # The coordinator's children are storage jobs, which survive a crash of CodeHub.
            victims += [pid] if name == "coordinator" else [pid, *descendants(pid)]
        for pid in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(PATIENCE)

    def restart(self) -> Self:
        if self.process is not None and self.process.poll() is None:
            self.stop()
        return self.start()

    def client(self, username: str | None = None, password: str | None = None) -> httpx.Client:
        """Return a client of the API that is signed in."""
        client = httpx.Client(base_url=self.base_url, timeout=PATIENCE)
        body = {"username": username or self.admin_username, "password": password or self.admin_password}
        answer = client.post("/api/v1/login", json=body)
        assert answer.status_code == 200, answer.text
        return client

    def internal(self, part: str, path: str) -> tuple[int, bytes]:
        """Send a request to the internal listener of a part; return the status and the body."""
        return internal_http.get(f"unix:{self.data_dir}/run/{part}-internal.sock", path, PATIENCE)

    def logs(self) -> str:
        files = sorted((self.data_dir / "logs").glob("*.log"))
        return "\n".join(f"== {file.name}\n{file.read_text(errors='replace')[-4000:]}" for file in files)

    def close(self) -> None:
        """End every process of this system, including workspaces and orphans."""
        if self.process is not None and self.process.poll() is None:
            try:
                self.stop()
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(PATIENCE)
        wait_for(lambda: not kill_processes_of(self.data_dir), "every process of the system to end")
        if self.process is not None and self.process.stdout is not None:
            self.process.stdout.close()
        shutil.rmtree(self.data_dir)

    def _read_until_ready(self) -> bool:
        assert self.process is not None and self.process.stdout is not None
        ended = self.process.poll() is not None
        with contextlib.suppress(BlockingIOError):
            self.output += os.read(self.process.stdout.fileno(), 65536).decode()
        assert not ended, f"`codehub up` ended with {self.process.returncode}:\n{self.output}\n{self.logs()}"
        return "is ready at" in self.output


def kill_processes_of(directory: Path) -> list[int]:
    """Send SIGKILL to every process that names the directory; return those that it found."""
    found = processes_of(directory)
    for pid in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return found


def processes_of(directory: Path) -> list[int]:
    """Return the processes whose command line, environment or cwd contains the directory."""
    mark = os.fsencode(directory)
    found = {pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if mark in _description(pid)}
    for pid in list(found):
        found.update(descendants(pid))
    return sorted(found - {os.getpid()})


def descendants(pid: int) -> list[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [found for child in map(int, children) for found in (child, *descendants(child))]


def _description(pid: int) -> bytes:
    parts = []
    with contextlib.suppress(OSError):
        parts.append(os.fsencode(os.readlink(f"/proc/{pid}/cwd")))
    for name in ("cmdline", "environ"):
        with contextlib.suppress(OSError):
            parts.append(Path(f"/proc/{pid}/{name}").read_bytes())
    return b"\0".join(parts)
