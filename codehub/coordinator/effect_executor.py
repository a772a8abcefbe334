"""Effect executor: starts what a decision asks for. Only a later observation shows whether it worked."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from codehub.coordinator.observer import LeaderState
from codehub.coordinator.provider_interfaces import Providers
from codehub.database.leadership import StaleLeader
from codehub.domain.disk import Reserve, shortages, waiting_message
from codehub.domain.effects import (
    ArchiveEmpty,
    ArchiveHome,
    CancelJob,
    DeleteContainer,
    DeleteVolume,
    Effect,
    Provision,
    RestoreHome,
    SetHomeAside,
    StartContainer,
)
from codehub.domain.error_policy import Failure
from codehub.domain.observation import Generation
from codehub.domain.states import ErrorReason
from codehub.domain.workspace import Workspace
from codehub.runtimes.base import RuntimeFailure, RuntimeUnobservable, WorkloadSpec
from codehub.storage.errors import (
    JobIsRunning,
    StaleEpoch,
    StorageProblem,
    TooManyArchives,
    Unobservable,
    VolumeBusy,
    from_os_error,
)
from codehub.storage.jobs.spec import ArchiveJob, DeleteJob, EmptyArchiveJob, JobSpec, RestoreJob
from codehub.storage.volumes.quota import NO_QUOTA, HomeQuota

_ARCHIVE_RESERVE_DIVISOR = 4
"""Archiving frees space, so it may use the reserve, except a quarter that is kept for the database."""


class EffectFailed(Exception):  # noqa: N818 - a fact, not a fault
    """Failure of an effect, with its reason."""

    def __init__(self, reason: ErrorReason, message: str) -> None:
        super().__init__(message)
        self.failure = Failure(reason, message)


class EffectDeferred(Exception):  # noqa: N818 - a fact, not a fault
    """Postponement of an effect, because the observation is outdated."""


class EffectQueued(EffectDeferred):
    """Postponement of an effect that waits behind others. The time that it waits counts as progress."""


class DiskSpaceShortage(EffectQueued):
    """Postponement of an effect while the disk is below its reserve. The owner sees what it waits for."""


@dataclass(frozen=True)
class ExecutorRules:
    disk_reserve: Reserve
    uid_base: int
    quota: HomeQuota = NO_QUOTA


class EffectExecutor:
    """Executor of effects in one leadership term.

    `epoch` is the leader's: disks reject the effects of earlier leaders, as the database rejects
    their writes (ADR 0002).
    """

    def __init__(self, providers: Providers, state: LeaderState, rules: ExecutorRules, epoch: int) -> None:
        self._providers = providers
        self._state = state
        self._rules = rules
        self._epoch = epoch

    async def execute(self, workspace: Workspace, effect: Effect, sha256: str | None) -> None:
        """Carry out one effect, or raise EffectFailed, EffectDeferred or StaleLeader."""
        with self._translate_provider_errors(workspace):
            await self._execute(workspace, effect, sha256)

    async def fence(self, workspace: Workspace) -> None:
        """Fence this home against earlier leaders and the jobs that they have yet to start."""
        with self._translate_provider_errors(workspace):
            await self._fence(workspace)

    @contextmanager
    def _translate_provider_errors(self, workspace: Workspace) -> Iterator[None]:
        """Translate errors of the providers for the controller, with messages that owners may see."""
        redact_message = self._providers.messages.redact_message
        try:
            yield
        except StaleEpoch as error:
            self._state.newest_epoch = max(self._state.newest_epoch, error.newest)
            raise StaleLeader from error
        except VolumeBusy as error:
            raise EffectDeferred(error.message) from error
        except JobIsRunning as error:
            # If this counted as a failure, the next attempt would lose track of the running job.
            raise EffectDeferred(error.message) from error
        except TooManyArchives as error:
            raise EffectQueued(error.message) from error
        except StorageProblem as error:
            raise EffectFailed(error.reason, redact_message(error.message)) from error
        except RuntimeFailure as error:
            raise EffectFailed(error.reason, redact_message(error.message)) from error
        except RuntimeUnobservable as error:
            raise EffectFailed(ErrorReason.Unreachable, redact_message(error.message)) from error
        except OSError as error:
            problem = from_os_error(error, f"an effect on workspace {workspace.id} could not be carried out")
            raise EffectFailed(problem.reason, redact_message(problem.message)) from error

    async def _execute(self, workspace: Workspace, effect: Effect, sha256: str | None) -> None:
        match effect:
            case Provision():
                await self._check_disk()
                await self._require_no_container(workspace)
                await self._providers.volumes.provision(
                    workspace.home_store_key,
                    effect.generation,
                    self._epoch,
                    self._uid(workspace),
                    self._home_files(workspace),
                )
            case StartContainer():
                await self._start(workspace, effect)
            case DeleteContainer():
                await self._providers.runtime.delete(workspace.id)
            case SetHomeAside():
                await self._providers.volumes.set_aside(
                    workspace.home_store_key, effect.generation, self._epoch
                )
            case CancelJob():
                await self._providers.jobs.cancel(effect.job_id)
            case ArchiveHome() | DeleteVolume():
                await self._require_no_container(workspace, of=effect.generation)
                await self._start_job(effect.job_id, self._volume_job(workspace, effect))
            case ArchiveEmpty():
                await self._fence(workspace)
                await self._start_job(effect.job_id, self._empty_archive(workspace, effect))
            case RestoreHome():
                await self._check_disk()
                await self._require_no_container(workspace)
                await self._start_job(effect.job_id, self._restore(workspace, effect, sha256))

    async def _start(self, workspace: Workspace, effect: StartContainer) -> None:
        image = self._providers.images.get(workspace.image_ref)
        if image is None:
            known = ", ".join(sorted(self._providers.images))
            message = f"The image {workspace.image_ref!r} is no longer offered. Offered: {known}."
            raise EffectFailed(ErrorReason.ActionFailed, message)
        await self._check_disk()
        async with self._providers.volumes.hold(workspace.home_store_key, self._epoch):
            await self._check_generation(workspace, effect.generation)
            uid = self._uid(workspace)
            if uid is not None:
                await self._providers.volumes.set_quota(uid, self._rules.quota)
            await self._providers.runtime.start(
                WorkloadSpec(
                    workspace_id=workspace.id,
                    image=image,
                    home=self._providers.volumes.path(workspace.home_store_key),
                    op_id=effect.attempt,
                    uid=uid,
                    name=workspace.name,
                )
            )

    async def _fence(self, workspace: Workspace) -> None:
        async with self._providers.volumes.hold(workspace.home_store_key, self._epoch):
            pass

    async def _require_no_container(self, workspace: Workspace, of: Generation | None = None) -> None:
        """Raise EffectDeferred if a container exists. The fence keeps earlier leaders from starting one."""
        async with self._providers.volumes.hold(workspace.home_store_key, self._epoch):
            if of is not None:
                await self._check_generation(workspace, of)
            container = await self._providers.runtime.status(workspace.id)
            if container.exists:
                raise EffectDeferred("A container of this workspace exists.")

    async def _check_generation(self, workspace: Workspace, generation: Generation) -> None:
        volume = await self._providers.volumes.status(workspace.home_store_key)
        if volume is None or volume.generation != generation:
            raise EffectDeferred("The home is of another generation.")

    async def _start_job(self, job_id: str, spec: JobSpec) -> None:
        if await self._providers.jobs.start(job_id, spec):
            self._state.started_jobs.add(job_id)

    def _volume_job(self, workspace: Workspace, effect: ArchiveHome | DeleteVolume) -> JobSpec:
        location, key = self._providers.storage_location, workspace.home_store_key
        if isinstance(effect, DeleteVolume):
            began = None if workspace.op_started_at is None else workspace.op_started_at.timestamp()
            return DeleteJob(
                location, workspace.id, key, effect.generation, self._epoch, unchanged_since=began
            )
        reserve = self._rules.disk_reserve.bytes // _ARCHIVE_RESERVE_DIVISOR
        return ArchiveJob(
            location, workspace.id, key, effect.generation, effect.archive_op_id, self._epoch, reserve
        )

    def _empty_archive(self, workspace: Workspace, effect: ArchiveEmpty) -> JobSpec:
        return EmptyArchiveJob(
            self._providers.storage_location,
            workspace.id,
            workspace.home_store_key,
            effect.archive_op_id,
            self._uid(workspace),
            self._epoch,
            dict(self._home_files(workspace)),
        )

    def _restore(self, workspace: Workspace, effect: RestoreHome, sha256: str | None) -> JobSpec:
        return RestoreJob(
            self._providers.storage_location,
            workspace.id,
            workspace.home_store_key,
            effect.op_id,
            effect.archive_key,
            sha256,
            self._epoch,
            self._rules.disk_reserve.bytes,
            self._uid(workspace),
            self._rules.disk_reserve.files,
        )

    def _home_files(self, workspace: Workspace) -> Mapping[str, str]:
        """Return the files of a new home: none if the image is no longer offered."""
        image = self._providers.images.get(workspace.image_ref)
        return {} if image is None else image.home_files

    def _uid(self, workspace: Workspace) -> int | None:
        """Return the uid of the workspace's own user, which only root can assign."""
        return self._rules.uid_base + workspace.number if os.geteuid() == 0 else None

    async def _check_disk(self) -> None:
        """Raise DiskSpaceShortage below the reserve: a full disk would stop the database."""
        try:
            free = await self._providers.volumes.free_space()
        except Unobservable as error:
            # A start that waits measures repeatedly: a single failure must not add up to an error.
            raise EffectDeferred(error.message) from error
        short = shortages(free, self._rules.disk_reserve)
        if short:
            raise DiskSpaceShortage(waiting_message(short[0]))
