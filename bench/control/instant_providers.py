"""Providers that return at once, so that only the control plane is measured."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

from codehub.coordinator.provider_interfaces import Providers
from codehub.domain.archive_keys import archive_key
from codehub.domain.images import BUILT_IN
from codehub.domain.observation import ArchiveFact, ContainerFact, Generation, JobFact, JobState, VolumeFact
from codehub.domain.resource_usage import ResourceUsage
from codehub.domain.volume_leftovers import Leftover
from codehub.runtimes.base import ABSENT, WorkloadSpec
from codehub.storage.archive.archives import ListedArchive
from codehub.storage.jobs.spec import (
    ArchiveJob,
    DeleteJob,
    EmptyArchiveJob,
    JobSpec,
    RestoreJob,
    StorageLocation,
)

SUCCEEDED = JobFact(JobState.SUCCEEDED, None, None, "")


class InstantRuntime:
    name = "instant"

    def __init__(self) -> None:
        self.containers: dict[str, ContainerFact] = {}
        self.started_at: dict[str, float] = {}
        self.started = asyncio.Event()

    async def start(self, spec: WorkloadSpec) -> None:
        self.started_at[spec.workspace_id] = time.perf_counter()
        self.started.set()
        upstream = f"unix:/{spec.workspace_id}"
        self.containers[spec.workspace_id] = ContainerFact(True, True, True, upstream, spec.op_id)

    async def stop(self, workspace_id: str) -> None:
        await self.delete(workspace_id)

    async def delete(self, workspace_id: str) -> None:
        self.containers.pop(workspace_id, None)

    async def upstream(self, workspace_id: str) -> str | None:
        return (await self.status(workspace_id)).upstream

    async def status(self, workspace_id: str) -> ContainerFact:
        return self.containers.get(workspace_id, ABSENT)

    async def observe(self) -> dict[str, ContainerFact]:
        return dict(self.containers)

    async def logs(self, workspace_id: str, lines: int) -> str:
        return ""

    async def resource_usage(self, workspace_ids: Sequence[str], within: float) -> dict[str, ResourceUsage]:
        return {}


class InstantVolumes:
    """Homes in memory, and the state that archives and jobs share."""

    def __init__(self) -> None:
        self.homes: dict[str, VolumeFact] = {}
        self.archives: dict[str, ArchiveFact] = {}
        self._succeeded: set[str] = set()

    async def observe(self) -> dict[str, VolumeFact]:
        return dict(self.homes)

    async def leftovers(self) -> list[Leftover]:
        return []

    async def provision(
        self, key: str, generation: Generation, epoch: int, uid: int | None, files: Mapping[str, str]
    ) -> None:
        self.homes[_workspace_of(key)] = VolumeFact(generation)

    async def set_aside(self, key: str, generation: Generation, epoch: int) -> None:
        del self.homes[_workspace_of(key)]

    @asynccontextmanager
    async def hold(self, key: str, epoch: int) -> AsyncIterator[None]:
        yield

    def path(self, key: str) -> Path:
        return Path(key)

    async def free_bytes(self) -> int:
        return 1 << 40

    async def status(self, key: str) -> VolumeFact | None:
        return self.homes.get(_workspace_of(key))

    def run_job(self, job_id: str, spec: JobSpec) -> None:
        self._succeeded.add(job_id)
        match spec:
            case ArchiveJob() | EmptyArchiveJob():
                key = archive_key(spec.workspace_id, spec.archive_op_id)
                fact = ArchiveFact(spec.workspace_id, spec.archive_op_id, key, "0" * 64, 1, 1, 1)
                self.archives[key] = fact
            case RestoreJob():
                generation = Generation(spec.op_id, spec.archive_key)
                self.homes[spec.workspace_id] = VolumeFact(generation)
            case DeleteJob():
                self.homes.pop(spec.workspace_id, None)

    def job_status(self, job_id: str) -> JobFact | None:
        return SUCCEEDED if job_id in self._succeeded else None


class InstantArchives:
    def __init__(self, volumes: InstantVolumes) -> None:
        self._volumes = volumes

    async def check(self) -> None:
        return

    async def find(self, workspace_id: str, archive_op_id: str) -> ArchiveFact | None:
        return self._volumes.archives.get(archive_key(workspace_id, archive_op_id))

    async def list(self) -> list[ListedArchive]:
        now = datetime.now(UTC)
        return [
            ListedArchive(fact.workspace_id, fact.archive_op_id, key, fact.bytes, now, True)
            for key, fact in self._volumes.archives.items()
        ]

    async def remove(self, key: str) -> None:
        self._volumes.archives.pop(key, None)


class InstantJobs:
    def __init__(self, volumes: InstantVolumes) -> None:
        self._volumes = volumes

    async def start(self, job_id: str, spec: JobSpec) -> None:
        self._volumes.run_job(job_id, spec)

    async def status(self, job_id: str) -> JobFact | None:
        return self._volumes.job_status(job_id)

    async def cancel(self, job_id: str) -> None:
        return

    async def forget(self, job_id: str) -> None:
        return

    async def list(self) -> "list[str]":
        return []


def instant_providers() -> tuple[Providers, InstantRuntime, InstantVolumes]:
    runtime, volumes = InstantRuntime(), InstantVolumes()
    return (
        Providers(
            runtime=runtime,
            volumes=volumes,
            archives=InstantArchives(volumes),
            jobs=InstantJobs(volumes),
            images={image.name: image for image in BUILT_IN},
            storage_location=StorageLocation(Path("/volumes"), "file:///archives", "bench"),
        ),
        runtime,
        volumes,
    )


def _workspace_of(key: str) -> str:
    return key.split("/")[3]
