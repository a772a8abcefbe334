"""The providers of one simulated coordinator process. All processes share one world."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from codehub.coordinator.provider_interfaces import Providers
from codehub.domain.archive_keys import archive_key
from codehub.domain.disk import FreeSpace, HomeSize
from codehub.domain.images import BUILT_IN
from codehub.domain.observation import ArchiveFact, ContainerFact, Generation, JobFact, Unknown, VolumeFact
from codehub.domain.resource_usage import Amount, CpuTime, ResourceUsage
from codehub.domain.states import ErrorReason
from codehub.domain.volume_leftovers import HOME, Leftover
from codehub.runtimes.base import ABSENT, RuntimeFailure, RuntimeUnobservable, WorkloadSpec
from codehub.storage.archive.archives import ListedArchive
from codehub.storage.errors import (
    GenerationMismatch,
    StaleEpoch,
    StorageProblem,
    StoreTrouble,
    Unobservable,
    VolumeBusy,
)
from codehub.storage.jobs.spec import JobSpec, StorageLocation
from codehub.storage.volumes.quota import HomeQuota, QuotaUsage
from tests.simulation.jobs import Jobs
from tests.simulation.process import Process
from tests.simulation.world import Container, Disk, Home


def home_store_key(workspace_id: str) -> str:
    return f"users/u/workspaces/{workspace_id}/home"


def workspace_of(key: str) -> str:
    return key.split("/")[3]


def volume_fact(disk: Disk) -> VolumeFact | None:
    return None if disk.home is None else VolumeFact(disk.marker)


class SimulatedRuntime:
    name = "simulated"

    def __init__(self, process: Process) -> None:
        self._process = process
        self._world = process.world

    async def start(self, spec: WorkloadSpec) -> None:
        await self._process.write(lambda: self._start(spec), _runtime_error, "runtime")

    async def stop(self, workspace_id: str) -> None:
        await self._process.write(lambda: self._stop(workspace_id), _runtime_error, "runtime")

    async def delete(self, workspace_id: str) -> None:
        await self._process.write(lambda: self._delete(workspace_id), _runtime_error, "runtime")

    async def upstream(self, workspace_id: str) -> str | None:
        return (await self.status(workspace_id)).upstream

    async def status(self, workspace_id: str) -> ContainerFact:
        return await self._process.read(lambda: self._fact(workspace_id), _runtime_unobservable, "runtime")

    async def observe(self) -> dict[str, ContainerFact | Unknown]:
        facts = await self._process.read(
            lambda: {name: self._fact(name) for name in self._world.containers},
            _runtime_unobservable,
            "runtime",
        )
        return self._process.hide_some(facts)

    async def ping(self) -> None:
        await self._process.read(lambda: None, _runtime_unobservable, "runtime")

    async def logs(self, workspace_id: str, lines: int) -> str:
        return ""

    async def resource_usage(
        self, workspace_ids: Sequence[str], within: float
    ) -> dict[str, ResourceUsage | Unknown]:
        running = [name for name in workspace_ids if name in self._world.containers]
        facts = await self._process.read(
            lambda: {name: self._usage(name) for name in running if self._world.containers[name].running},
            _runtime_unobservable,
            "runtime",
        )
        return self._process.hide_some(facts)

    def _usage(self, workspace_id: str) -> ResourceUsage:
        cpu = CpuTime(self._world.cpu_seconds(workspace_id), None)
        container = self._world.containers[workspace_id]
        return ResourceUsage(container.attempt, cpu, Amount(1, None), Amount(1, None))

    def _start(self, spec: WorkloadSpec) -> None:
        there = self._world.containers.get(spec.workspace_id)
        if there is not None and there.running:
            return
        home = self._world.disk(spec.workspace_id).home
        if home is None:
            raise RuntimeFailure(ErrorReason.ActionFailed, "There is no home.")
        slow = self._process.chance.random() < 0.05
        ready_at = self._world.loop.time() + self._process.chance.uniform(*((40, 100) if slow else (0.05, 2)))
        hangs = spec.op_id.endswith(self._world.hanging_attempts) and self._process.chance.random() < 0.3
        self._world.containers[spec.workspace_id] = Container(
            spec.op_id, home, ready_at, silent_from=self._world.loop.time(), hangs=hangs
        )
        self._world.record(spec.workspace_id, f"container on {home.content!r} by {self._process.name}")

    def _stop(self, workspace_id: str) -> None:
        if workspace_id in self._world.containers:
            self._world.containers[workspace_id].running = False

    def _delete(self, workspace_id: str) -> None:
        if self._world.containers.pop(workspace_id, None) is not None:
            self._world.record(workspace_id, f"container is deleted by {self._process.name}")

    def _fact(self, workspace_id: str) -> ContainerFact:
        container = self._world.containers.get(workspace_id)
        if container is None:
            return ABSENT
        ready = container.is_ready(self._world.loop.time())
        upstream = f"unix:/{workspace_id}" if container.running else None
        return ContainerFact(True, container.running, ready, upstream, container.attempt)


class SimulatedVolumes:
    def __init__(self, process: Process) -> None:
        self._process = process
        self._world = process.world

    async def observe(self) -> dict[str, VolumeFact | Unknown]:
        facts = await self._process.read(self._observe, Unobservable, "volumes")
        return self._process.hide_some(facts)

    async def leftovers(self) -> list[Leftover]:
        return await self._process.read(self._leftovers, Unobservable, "volumes")

    async def status(self, key: str) -> VolumeFact | None:
        disk = self._world.disk(workspace_of(key))
        return await self._process.read(lambda: volume_fact(disk), Unobservable, "volumes")

    @asynccontextmanager
    async def hold(self, key: str, epoch: int) -> AsyncIterator[None]:
        disk = self._world.disk(workspace_of(key))
        await self._process.read(lambda: self._lock(disk, epoch), Unobservable, "volumes")
        try:
            yield
        finally:
            if disk.lock is self._process:
                disk.lock = None

    async def provision(
        self, key: str, generation: Generation, epoch: int, uid: int | None, files: Mapping[str, str]
    ) -> None:
        workspace_id = workspace_of(key)
        await self._process.write(
            lambda: self._provision(workspace_id, generation, epoch), StorageProblem, "volumes"
        )

    async def set_aside(self, key: str, generation: Generation, epoch: int) -> None:
        workspace_id = workspace_of(key)
        await self._process.write(
            lambda: self._set_aside(workspace_id, generation, epoch), StorageProblem, "volumes"
        )

    def path(self, key: str) -> Path:
        return Path(key)

    async def check(self) -> None:
        await self._process.read(lambda: None, Unobservable, "volumes")

    async def free_space(self) -> FreeSpace:
        if self._world.is_down("space"):
            return FreeSpace(0, 0)
        return await self._process.read(self._world.free_space, Unobservable, "volumes")

    async def measure(self, key: str) -> HomeSize:
        return await self._process.read(lambda: self._measure(workspace_of(key)), Unobservable, "volumes")

    async def usage(self, uid: int) -> QuotaUsage | None:
        return None

    async def set_quota(self, uid: int, quota: HomeQuota) -> None:
        return

    def _measure(self, workspace_id: str) -> HomeSize:
        home = self._world.disk(workspace_id).home
        if home is None:
            raise Unobservable("There is no home.")
        return HomeSize(home.size, home.entries)

    def _lock(self, disk: Disk, epoch: int) -> None:
        if disk.lock is not None:
            raise VolumeBusy
        if disk.fence > epoch:
            raise StaleEpoch(epoch, disk.fence)
        disk.lock, disk.fence = self._process, epoch

    def _provision(self, workspace_id: str, generation: Generation, epoch: int) -> None:
        disk = self._world.disk(workspace_id)
        self._lock(disk, epoch)
        try:
            if disk.home is None or disk.marker is None:
                if disk.home is not None:
                    self._move(disk, f".aside-{generation.op_id}")
                disk.marker, disk.home = generation, Home(b"")
            elif disk.marker != generation:
                raise GenerationMismatch.found(disk.marker)
        finally:
            disk.lock = None
        self._world.record(workspace_id, f"empty home {generation.op_id[-4:]}")
        self._world.changed(workspace_id)

    def _set_aside(self, workspace_id: str, generation: Generation, epoch: int) -> None:
        disk = self._world.disk(workspace_id)
        self._lock(disk, epoch)
        try:
            if disk.home is None:
                return
            if disk.marker != generation:
                raise GenerationMismatch
            self._move(disk, f".aside-{generation.op_id}")
        finally:
            disk.lock = None
        self._world.changed(workspace_id)

    def _move(self, disk: Disk, name: str) -> None:
        assert disk.home is not None
        while name in disk.siblings:
            name += "-2"
        disk.siblings[name], disk.home, disk.marker = disk.home, None, None

    def _observe(self) -> dict[str, VolumeFact]:
        return {
            name: VolumeFact(disk.marker) for name, disk in self._world.disks.items() if disk.home is not None
        }

    def _leftovers(self) -> list[Leftover]:
        found = []
        for name, disk in self._world.disks.items():
            key = home_store_key(name)
            if disk.home is not None:
                found.append(Leftover(key, name, HOME, disk.marker))
            found += [Leftover(key, name, item) for item in disk.siblings]
        return found


class SimulatedArchives:
    def __init__(self, process: Process) -> None:
        self._process = process
        self._world = process.world

    async def check(self) -> None:
        await self._process.read(lambda: None, StoreTrouble, "store")

    async def find(self, workspace_id: str, archive_op_id: str) -> ArchiveFact | None:
        key = archive_key(workspace_id, archive_op_id)
        return await self._process.read(lambda: self._world.find(key), StoreTrouble, "store")

    async def list(self) -> "list[ListedArchive]":
        return await self._process.read(self._list, StoreTrouble, "store")

    async def remove(self, key: str) -> None:
        await self._process.write(lambda: self._world.remove(key), StoreTrouble, "store")

    def _list(self) -> "list[ListedArchive]":
        return [
            ListedArchive(  # type: ignore[call-arg]
                *key.split("/")[:2], key, len(item.content), self._world.loop.utc_now(), item.complete
            )
            for key, item in self._world.store.items()
        ]


class SimulatedJobs:
    def __init__(self, process: Process, jobs: Jobs) -> None:
        self._process = process
        self._jobs = jobs

    async def start(self, job_id: str, spec: JobSpec) -> bool:
        return await self._process.write(lambda: self._jobs.start(job_id, spec), StorageProblem, "jobs")

    async def status(self, job_id: str) -> JobFact | None:
        def read() -> JobFact | None:
            job = self._jobs.all.get(job_id)
            return None if job is None else job.fact()

        return await self._process.read(read, _disk_error, "jobs")

    async def cancel(self, job_id: str) -> None:
        await self._process.write(lambda: self._jobs.kill(job_id), StorageProblem, "jobs")

    async def forget(self, job_id: str) -> None:
        await self._process.write(lambda: self._jobs.forget(job_id), StorageProblem, "jobs")

    async def list(self) -> "list[str]":
        return await self._process.read(lambda: sorted(self._jobs.all), _disk_error, "jobs")


def providers_of(process: Process, jobs: Jobs) -> Providers:
    return Providers(
        runtime=SimulatedRuntime(process),
        volumes=SimulatedVolumes(process),
        archives=SimulatedArchives(process),
        jobs=SimulatedJobs(process, jobs),
        images={image.name: image for image in BUILT_IN},
        storage_location=StorageLocation(Path("/volumes"), "file:///archives", "simulated"),
    )


def _runtime_error() -> Exception:
    return RuntimeFailure(ErrorReason.ActionFailed, "The runtime failed.")


def _runtime_unobservable() -> Exception:
    return RuntimeUnobservable("The runtime does not answer.")


def _disk_error() -> Exception:
    return OSError("The disk of the jobs cannot be read.")
