"""Simulated storage jobs, with the steps of `codehub.storage.jobs.work`. Each may be the last."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass

from codehub.domain.archive_keys import archive_key
from codehub.domain.observation import Generation, JobFact, JobState, Progress
from codehub.storage.errors import (
    ArchiveMissing,
    CorruptedArchive,
    GenerationMismatch,
    StaleEpoch,
    StorageProblem,
    StoreTrouble,
    VolumeBusy,
)
from codehub.storage.jobs.spec import ArchiveJob, ClearJob, DeleteJob, EmptyArchiveJob, JobSpec, RestoreJob
from tests.simulation.process import Faults
from tests.simulation.world import Disk, Home, World, sha256


@dataclass
class Job:
    job_id: str
    spec: JobSpec
    state: JobState = JobState.RUNNING
    moved: int = 0
    problem: StorageProblem | None = None
    task: "asyncio.Task[None] | None" = None

    def fact(self) -> JobFact:
        reason = self.problem.reason if self.problem else None
        return JobFact(self.state, Progress(self.moved), reason, str(self.problem or ""))


class Jobs:
    """All jobs of the machine. They belong to no coordinator, and outlive all of them."""

    def __init__(self, world: World, chance: random.Random, faults: Faults) -> None:
        self.world = world
        self.all: dict[str, Job] = {}
        self._chance = chance
        self._faults = faults

    def start(self, job_id: str, spec: JobSpec) -> bool:
        there = self.all.get(job_id)
        if there is not None and there.state is not JobState.GONE:
            return False
        job = self.all[job_id] = Job(job_id, spec)
        job.task = asyncio.create_task(self._run(job), name=job_id)
        return True

    def kill(self, job_id: str) -> None:
        job = self.all.get(job_id)
        if job is not None and job.state is JobState.RUNNING:
            self._end(job, JobState.GONE)
            if job.task is not None:
                job.task.cancel()

    def forget(self, job_id: str) -> None:
        self.all.pop(job_id, None)

    def running(self) -> list[str]:
        return [name for name, job in self.all.items() if job.state is JobState.RUNNING]

    def _end(self, job: Job, state: JobState) -> None:
        job.state = state
        disk = self.world.disk(job.spec.workspace_id)
        if disk.lock is job:
            disk.lock = None

    async def _run(self, job: Job) -> None:
        disk = self.world.disk(job.spec.workspace_id)
        try:
            await self._lock(job, disk)
            await self._work(job, disk)
        except StaleEpoch:
            self._end(job, JobState.GONE)
            return
        except StorageProblem as problem:
            job.problem = problem
            self._end(job, JobState.FAILED)
            return
        self._end(job, JobState.SUCCEEDED)

    async def _lock(self, job: Job, disk: Disk) -> None:
        for _ in range(20):
            if disk.lock is None:
                if disk.fence > job.spec.epoch:
                    raise StaleEpoch(job.spec.epoch, disk.fence)
                disk.lock, disk.fence = job, job.spec.epoch
                return
            await asyncio.sleep(0.5)
        raise VolumeBusy

    async def _step(self, job: Job) -> None:
        """Let time pass. The job may be killed here, or take very long."""
        luck = self._chance.random()
        if luck < self._faults.rate:
            self.kill(job.job_id)
        long = luck > 1 - self._faults.rate / 2
        await asyncio.sleep(self._chance.uniform(5, 200) if long else self._chance.uniform(0.01, 0.6))
        job.moved += 1

    async def _reach_store(self, job: Job) -> None:
        for _ in range(3):
            if not self.world.is_down("store"):
                return
            await asyncio.sleep(2)
        raise StoreTrouble("the store is down")

    async def _work(self, job: Job, disk: Disk) -> None:
        spec = job.spec
        match spec:
            case ArchiveJob():
                await self._archive(job, disk, spec)
            case EmptyArchiveJob():
                await self._store(job, archive_key(spec.workspace_id, spec.archive_op_id), lambda: b"")
            case RestoreJob():
                await self._restore(job, disk, spec)
            case DeleteJob():
                await self._delete(job, disk, spec)
            case ClearJob():
                await self._step(job)
                for name in spec.names:
                    disk.siblings.pop(name, None)
                self.world.changed(spec.workspace_id)

    async def _archive(self, job: Job, disk: Disk, spec: ArchiveJob) -> None:
        if disk.home is None or disk.marker != spec.generation:
            raise GenerationMismatch
        home = disk.home
        await self._store(job, archive_key(spec.workspace_id, spec.archive_op_id), lambda: home.content)

    async def _store(self, job: Job, key: str, read: Callable[[], bytes]) -> None:
        """Read and upload in two halves, so that a write in between tears the archive."""
        await self._reach_store(job)
        there = self.world.store.get(key)
        if there is not None and there.complete:
            return
        first = read()
        half = len(first) // 2
        self.world.put(key, first[:half])
        await self._step(job)
        content = first[:half] + read()[half:]
        self.world.put(key, content)
        await self._step(job)
        await self._reach_store(job)
        there = self.world.store.get(key)
        if there is None or there.content != content:
            raise StoreTrouble("the archive reads back differently")
        self.world.commit(key)
        self.world.changed(job.spec.workspace_id)

    async def _restore(self, job: Job, disk: Disk, spec: RestoreJob) -> None:
        if disk.home is not None and disk.marker is not None:
            if disk.marker.op_id == spec.op_id:
                return
            raise GenerationMismatch.found(disk.marker)
        await self._reach_store(job)
        item = self.world.store.get(spec.archive_key)
        if item is None or not item.complete:
            raise ArchiveMissing
        staging = f".staging-{spec.op_id}"
        disk.siblings[staging] = Home(item.content[: len(item.content) // 2])
        await self._step(job)
        content = item.content
        if sha256(content) != item.sha256 or spec.sha256 not in (None, item.sha256):
            del disk.siblings[staging]
            raise CorruptedArchive
        disk.siblings[staging] = Home(content)
        await self._step(job)
        if disk.home is not None:
            self._move_home(disk, f".aside-{spec.op_id}")
        await self._swap_in(job, disk, staging, Generation(spec.op_id, spec.archive_key))

    async def _swap_in(self, job: Job, disk: Disk, staging: str, generation: Generation) -> None:
        disk.marker = generation
        await self._step(job)
        disk.home = disk.siblings.pop(staging)
        self.world.record(job.spec.workspace_id, f"home {generation.op_id[-4:]}: {disk.home.content!r}")
        self.world.changed(job.spec.workspace_id)

    async def _delete(self, job: Job, disk: Disk, spec: DeleteJob) -> None:
        if disk.home is not None:
            if disk.marker != spec.generation:
                raise GenerationMismatch
            self.world.before_deletion(spec.workspace_id, disk.home)
            name = f".deleted-{spec.generation.op_id if spec.generation else 'unmarked'}"
            self._move_home(disk, name)
            self.world.record(spec.workspace_id, "home is deleted")
            self.world.changed(spec.workspace_id)
            await self._step(job)
        disk.marker = None
        for name in [name for name in disk.siblings if name.startswith(".deleted-")]:
            del disk.siblings[name]

    def _move_home(self, disk: Disk, name: str) -> None:
        assert disk.home is not None
        while name in disk.siblings:
            name += "-2"
        disk.siblings[name], disk.home = disk.home, None
