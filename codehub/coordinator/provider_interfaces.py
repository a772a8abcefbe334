"""Interfaces to the volumes, archives and storage jobs, as the coordinator needs them."""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from codehub.coordinator.leader_interfaces import HintSource
from codehub.coordinator.owner_message_filter import OwnerMessageFilter
from codehub.domain.disk import FreeSpace, HomeSize
from codehub.domain.images import Image
from codehub.domain.observation import ArchiveFact, Generation, JobFact, Unknown, VolumeFact
from codehub.domain.volume_leftovers import Leftover
from codehub.runtimes.base import Runtime
from codehub.runtimes.command_runtime import CommandRuntime
from codehub.storage.archive.archives import ListedArchive
from codehub.storage.jobs.spec import JobSpec, StorageLocation
from codehub.storage.volumes.quota import HomeQuota, QuotaUsage


class Volumes(Protocol):
    async def observe(self) -> Mapping[str, VolumeFact | Unknown]: ...
    async def leftovers(self) -> list[Leftover]: ...
    async def status(self, home_store_key: str) -> VolumeFact | None: ...
    def hold(self, home_store_key: str, epoch: int) -> AbstractAsyncContextManager[None]: ...
    async def provision(
        self,
        home_store_key: str,
        generation: Generation,
        epoch: int,
        uid: int | None,
        files: Mapping[str, str],
    ) -> None: ...
    async def set_aside(self, home_store_key: str, generation: Generation, epoch: int) -> None: ...
    def path(self, home_store_key: str) -> Path: ...
    async def free_space(self) -> FreeSpace: ...
    async def check(self) -> None: ...
    async def measure(self, home_store_key: str) -> HomeSize: ...
    async def usage(self, uid: int) -> QuotaUsage | None: ...
    async def set_quota(self, uid: int, quota: HomeQuota) -> None: ...


class ArchiveProvider(Protocol):
    async def check(self) -> None: ...
    async def find(self, workspace_id: str, archive_op_id: str) -> ArchiveFact | None: ...
    async def list(self) -> list[ListedArchive]: ...
    async def remove(self, key: str) -> None: ...


class Jobs(Protocol):
    async def start(self, job_id: str, spec: JobSpec) -> bool: ...
    async def status(self, job_id: str) -> JobFact | None: ...
    async def cancel(self, job_id: str) -> None: ...
    async def forget(self, job_id: str) -> None: ...
    async def list(self) -> list[str]: ...


@dataclass(frozen=True)
class Providers:
    runtime: Runtime
    volumes: Volumes
    archives: ArchiveProvider
    jobs: Jobs
    images: Mapping[str, Image]
    storage_location: StorageLocation
    messages: OwnerMessageFilter = field(default_factory=OwnerMessageFilter)
    hints: HintSource | None = None
    """The runtime's notifications of container changes, if it has any."""
    commands: CommandRuntime | None = None
    """The commands of the runtime, if it keeps records of them."""
    claim: Callable[[], Awaitable[bool]] | None = None
    """Claims volumes and store if that was never done, and returns whether both are claimed."""
