"""Coordinator processes on an installation whose PostgreSQL and Redis a test may kill."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

import asyncpg
from sqlalchemy import text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from codehub.database import installation, migrate
from codehub.database.advisory_locks import AdvisoryLock
from codehub.database.engine import create_engine
from codehub.database.tables import users
from codehub.embedded.postgres import EmbeddedPostgres
from codehub.embedded.redis import EmbeddedRedis
from codehub.settings import load
from codehub.storage.archive.async_archive_store import ArchiveStore
from codehub.storage.volumes.local_volumes import LocalVolumes
from codehub.ulids import new_id
from tests import waiting
from tests.chaos import audit
from tests.integration.coordinator.conftest import IDE
from tests.services import TOOLS_DIR, kill_processes_of, run, short_temp_dir

T = TypeVar("T")

OWNER = "u1"
PASSWORD = "of a coordinator in a test"
DATABASE_ERRORS = (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, SQLAlchemyError)

COORDINATOR_SETTINGS = {
    # An hour, so that only hints and resyncs can start an operation within seconds.
    "COORDINATOR_IDLE_INTERVAL": "3600",
    "COORDINATOR_ACTIVE_INTERVAL": "0.2",
    "COORDINATOR_ACTIVE_DURATION": "0.5",
    "COORDINATOR_LEADER_RETRY_INTERVAL": "0.3",
    "COORDINATOR_TTL_INTERVAL": "0.5",
    "COORDINATOR_GC_INTERVAL": "3600",
    "ACTIVITY_FLUSH_INTERVAL": "0.5",
    "RECONCILER_RETRY_BACKOFF": "0.5",
    "TTL_STANDBY_SECONDS": "0",
    "TTL_ARCHIVE_SECONDS": "0",
    "DISK_RESERVE_BYTES": "0",
}

LOCK_HOLDERS = """
    SELECT usename, pid FROM pg_locks JOIN pg_stat_activity USING (pid)
    WHERE locktype = 'advisory' AND granted AND ((classid::bigint << 32) | objid::bigint) = :lock
"""


async def eventually(ask: Callable[[], Awaitable[T | None]], what: str, every: float = 0.05) -> T:
    """Return the first true answer; errors of a database that is down count as no answer."""

    async def look() -> T | Exception | None:
        try:
            return await ask()
        except DATABASE_ERRORS as error:
            return error

    def answers(seen: T | Exception | None) -> bool:
        return bool(seen) and not isinstance(seen, Exception)

    answer = await waiting.eventually(look, what, answers, every)
    assert answer is not None and not isinstance(answer, Exception)
    return answer


@dataclass(frozen=True)
class Coordinator:
    """Coordinator process. Its own database role identifies its sessions."""

    role: str
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)
        if number is signal.SIGKILL:
            self.process.wait(waiting.PATIENCE)

    def log_lines(self) -> list[str]:
        return self.log.read_text(errors="replace").splitlines()

    def count_logged(self, *events: str, **facts: object) -> int:
        """Return how often it has logged one of these events with these facts."""
        entries = [
            json.loads(line) for line in self.log_lines() if line.startswith("{") and line.endswith("}")
        ]
        return sum(entry["event"] in events and facts.items() <= entry.items() for entry in entries)


class CoordinatorInstallation:
    """Disks, PostgreSQL, Redis, and the coordinators that were started on them."""

    def __init__(self) -> None:
        self.data_dir = short_temp_dir()
        self.postgres = EmbeddedPostgres(self.data_dir, TOOLS_DIR)
        self.redis = EmbeddedRedis(self.data_dir, TOOLS_DIR)
        self.coordinators: list[Coordinator] = []
        self.archives_dir = self.data_dir / "archives"
        self._engine: AsyncEngine | None = None

    @classmethod
    @contextlib.contextmanager
    def running(cls) -> Iterator[Self]:
        installation = cls()
        try:
            run(installation._open())
            yield installation
        finally:
            for coordinator in installation.coordinators:
                coordinator.send(signal.SIGKILL)
            installation.redis.stop()
            installation.postgres.stop()
            ended = "every process of the installation to end"
            waiting.wait_for(lambda: not kill_processes_of(installation.data_dir), ended)
            shutil.rmtree(installation.data_dir)

    async def _open(self) -> None:
        (self.data_dir / "images.toml").write_text(images_toml())
        await self.postgres.start()
        await self.redis.start()
        await migrate.upgrade(self.postgres.url)
        engine = create_engine(self.postgres.url)
        own = await installation.load_or_create_installation(engine, new_id(), load().workspace_uid_base)
        async with engine.begin() as conn:
            await audit.install(conn)
            user = {"id": OWNER, "username": "one", "password_hash": "x", "role": "user"}
            await conn.execute(users.insert().values(**user))
        await engine.dispose()
        LocalVolumes(self.data_dir / "volumes", own.id).initialise()
        await ArchiveStore(f"file://{self.archives_dir}", own.id).initialise()

    @property
    def engine(self) -> AsyncEngine:
        assert self._engine is not None
        return self._engine

    @contextlib.asynccontextmanager
    async def connected(self) -> AsyncIterator[Self]:
        """Open connections that belong to the event loop of this test."""
        self._engine = create_engine(self.postgres.url)
        try:
            yield self
        finally:
            await self._engine.dispose()

    async def rows(self, query: str, **values: object) -> list[dict[str, Any]]:
        async with self.engine.connect() as conn:
            return [dict(row) for row in (await conn.execute(text(query), values)).mappings()]

    async def start_coordinator(self) -> Coordinator:
        role = f"coordinator_{len(self.coordinators) + 1}"
        async with self.engine.begin() as conn:
            # A superuser may end another coordinator's session. In production all have one role.
            await conn.execute(text(f"CREATE ROLE {role} SUPERUSER LOGIN PASSWORD '{PASSWORD}'"))
        log = self.data_dir / "logs" / f"{role}.log"
        with log.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "codehub.cli.serve", "coordinator"], env=self._environment(role),
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        self.coordinators.append(Coordinator(role, process, log))
        return self.coordinators[-1]

    def url_of(self, role: str) -> str:
        url = make_url(self.postgres.url).set(username=role, password=PASSWORD)
        return url.render_as_string(hide_password=False)

    def _environment(self, role: str) -> dict[str, str]:
        return {
            **os.environ,
            **COORDINATOR_SETTINGS,
            "DATABASE_URL": self.url_of(role),
            "REDIS_URL": self.redis.url,
            "CODEHUB_DATA_DIR": str(self.data_dir),
            "CODEHUB_TOOLS_DIR": str(TOOLS_DIR),
            "IMAGES_FILE": str(self.data_dir / "images.toml"),
        }

    @property
    def alive(self) -> list[Coordinator]:
        return [coordinator for coordinator in self.coordinators if coordinator.alive]

    def by_role(self, role: str) -> Coordinator:
        (found,) = [coordinator for coordinator in self.coordinators if coordinator.role == role]
        return found

    async def leader(self) -> Coordinator:
        """Wait for a coordinator that lives, holds the lock and is in the leadership row."""
        return await eventually(self._leader, f"a leader\n{self.log_tails()}")

    async def standby(self) -> Coordinator:
        leader = await self.leader()
        (standby,) = [coordinator for coordinator in self.alive if coordinator is not leader]
        return standby

    async def another_leader(self, than: Coordinator) -> Coordinator:
        async def other() -> Coordinator | None:
            leader = await self._leader()
            return leader if leader is not than else None

        try:
            return await eventually(other, f"another leader than {than.role}")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{await self._sessions()}\n{self.log_tails()}") from error

    async def _sessions(self) -> str:
        query = (
            "SELECT usename, pid, state, wait_event, pg_blocking_pids(pid) AS waits_for, query, "
            "clock_timestamp() - state_change AS since FROM pg_stat_activity WHERE usename IS NOT NULL"
        )
        return "\n".join(str(row) for row in await self.rows(query))

    async def epoch(self) -> int:
        (row,) = await self.rows("SELECT epoch FROM leadership")
        return int(row["epoch"])

    async def later_epoch(self, than: int) -> None:
        async def later() -> bool:
            return await self.epoch() > than

        await eventually(later, f"a later epoch than {than}\n{self.log_tails()}")

    async def _leader(self) -> Coordinator | None:
        assert self.alive, f"every coordinator has ended\n{self.log_tails()}"
        holders = await self.rows(LOCK_HOLDERS, lock=AdvisoryLock.LEADER.value)
        assert len(holders) <= 1, f"{holders} lead at the same time"
        (office,) = await self.rows("SELECT epoch, holder, backend_pid FROM leadership")
        if not holders or holders[0]["pid"] != office["backend_pid"]:
            return None
        leader = self.by_role(holders[0]["usename"])
        assert str(office["holder"]).endswith(f":{leader.process.pid}"), (office, leader)
        return leader if leader.alive else None

    async def start_missing(self) -> None:
        """Start coordinators until two are alive."""
        while len(self.alive) < 2:
            await self.start_coordinator()

    async def wait_for_leader_and_standby(self) -> None:
        """Wait until one coordinator leads and the other campaigns."""
        await self.start_missing()
        standby = await self.standby()

        async def stands_by() -> bool:
            (row,) = await self.rows("SELECT audit_campaigns(:role)", role=standby.role)
            return bool(row["audit_campaigns"])

        await eventually(stands_by, f"{standby.role} to stand by\n{self.log_tails()}")

    def log_tails(self) -> str:
        last = self.coordinators[-3:]
        tails = (f"== {each.role}\n" + "\n".join(each.log_lines()[-15:]) for each in last)
        return "\n".join(tails)


def images_toml() -> str:
    """Return one image, whose IDE has its workspace's id in its command line."""
    command = ["/usr/bin/python3", "-c", IDE, "{socket}", "{workspace_id}"]
    return f'[[image]]\nname = "tiny"\ndefault = true\nready_path = "/"\nprocess = {json.dumps(command)}\n'


def running_ides() -> dict[str, list[int]]:
    """Return the processes of each workspace's IDE, according to the kernel."""
    found: dict[str, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # it has ended meanwhile
                words = (entry / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
                if len(words) == 5 and words[2] == IDE.encode():
                    found.setdefault(words[-1].decode(), []).append(int(entry.name))
    return found
