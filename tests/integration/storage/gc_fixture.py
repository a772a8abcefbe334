"""Installation on a real store and a real database, for tests of GC."""

import asyncio
import os
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from sqlalchemy import update

from codehub.coordinator.gc_runner import GcRunner
from codehub.coordinator.main import make_providers
from codehub.database.tables import workspaces
from codehub.domain.archive_keys import archive_key, meta_key
from codehub.domain.gc import GcRules
from codehub.domain.observation import ArchiveFact, Generation, JobFact, JobState
from codehub.domain.states import DesiredState
from codehub.storage.archive.archives import meta_text
from codehub.storage.archive.async_archive_store import ArchiveStore
from codehub.storage.archive.open_object_store import open_object_store
from codehub.storage.jobs.spec import JobSpec
from tests.faulty_proxy import FaultyProxy
from tests.integration.coordinator.conftest import INSTALLATION, CoordinatorStack
from tests.paused_jobs import pausing_tar
from tests.waiting import eventually

HOUR = timedelta(hours=1)
RULES = GcRules(orphan_grace=2 * HOUR, retention=24 * HOUR)
NOW = datetime.now(UTC)
GENERATION = Generation("op1", None)
SHA = "ab" * 32
CONTENT = b"x" * 100
WHOLE = len(CONTENT) + len(f"sha256:{SHA}\nbytes=100 unpacked=10 entries=1\n")


class GcFixture:
    """Installation whose archives and rows a test makes one by one."""

    def __init__(self, stack: CoordinatorStack, url: str, proxy: FaultyProxy | None) -> None:
        stack.settings = stack.with_settings(archive_url=url)
        stack.providers = make_providers(stack.settings, INSTALLATION)
        self.stack, self.url, self.proxy = stack, url, proxy
        self._objects = open_object_store(url)

    async def workspace(self, **columns: object) -> str:
        workspace_id = await self.stack.create(DesiredState.STANDBY)
        await self.change(workspace_id, **{"phase": "STANDBY", **columns})
        return workspace_id

    async def change(self, workspace_id: str, **columns: object) -> None:
        async with self.stack.engine.begin() as conn:
            await conn.execute(update(workspaces).where(workspaces.c.id == workspace_id).values(**columns))

    async def archived(self, name: str, **columns: object) -> str:
        """Make a workspace with this archive, which is in the store."""
        workspace_id = await self.workspace(archive_op_id=name)
        await self.change(workspace_id, archive_key=self.put(workspace_id, name), **columns)
        return workspace_id

    def put(self, workspace_id: str, archive_op_id: str, *, meta: bool = True) -> str:
        key = archive_key(workspace_id, archive_op_id)
        self._objects.write(key, CONTENT)
        if meta:
            fact = ArchiveFact(workspace_id, archive_op_id, key, SHA, len(CONTENT), 10, 1)
            self._objects.write(meta_key(key), meta_text(fact))
        return key

    def names(self) -> set[str]:
        """Return all objects but the marker, with unfinished uploads."""
        return {stored.path for stored in self._objects.list()} - {".codehub-installation"}

    async def tick(self, hours: float, store: ArchiveStore | None = None, archives_kept: int = 0) -> int:
        """Run one cycle of a new leader, which knows only what is in the database."""
        epoch = await self.stack.take_leadership()
        providers = self.stack.providers if store is None else replace(self.stack.providers, archives=store)
        database = self.stack.leader_database(epoch, RULES.retention)
        rules = replace(RULES, archives_kept=archives_kept)
        return await GcRunner(database, providers, rules, epoch).tick(NOW + hours * HOUR)

    async def fill_home(self, workspace_id: str) -> Path:
        volumes, key = self.stack.providers.volumes, (await self.stack.get(workspace_id)).home_store_key
        await volumes.provision(key, GENERATION, 1, None, {})
        for number in range(32):
            (volumes.path(key) / f"{number}").write_bytes(os.urandom(1 << 20))
        return volumes.path(key)

    async def halfway(self, job_id: str, spec: JobSpec, reached: Callable[[], object]) -> None:
        """Start a real job that stays in the middle of its work until it is killed."""
        with pausing_tar():
            await self.stack.providers.jobs.start(job_id, spec)
            await eventually(lambda: asyncio.to_thread(reached), "the job to be halfway")
        assert (await self.status(job_id)).state is JobState.RUNNING

    def has_begun(self) -> bool:
        return any(stored.size for stored in self._objects.list() if "#" in stored.path)

    async def run(self, job_id: str, spec: JobSpec) -> None:
        await self.stack.providers.jobs.start(job_id, spec)
        await self.stack.wait_for_jobs()
        assert (await self.status(job_id)).state is JobState.SUCCEEDED

    async def status(self, job_id: str) -> JobFact:
        fact = await self.stack.providers.jobs.status(job_id)
        assert fact is not None
        return fact
