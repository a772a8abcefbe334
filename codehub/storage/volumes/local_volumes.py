"""Live homes in a local directory (`local-dir`)."""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType

import structlog

from codehub.domain.disk import FreeSpace, HomeSize
from codehub.domain.observation import Generation, Unknown, VolumeFact
from codehub.domain.volume_leftovers import HOME, Leftover
from codehub.storage.child_processes import remove_tree
from codehub.storage.errors import GenerationMismatch, Unobservable, from_os_error
from codehub.storage.installation_marker import check_directory, claim_directory
from codehub.storage.volumes.free_space import free_space
from codehub.storage.volumes.home_size import measure
from codehub.storage.volumes.new_home import make_new_home
from codehub.storage.volumes.quota import (
    NO_QUOTA,
    HomeQuota,
    QuotaState,
    QuotaUsage,
    quota_state,
    set_quota,
    usage_of,
)
from codehub.storage.volumes.workspace_directory import WorkspaceDirectory
from codehub.storage.volumes.workspace_lock import lock_workspace, locked_workspace

logger = structlog.get_logger(__name__)


class LocalVolumes:
    """Volumes below one root directory, which has the marker of the installation."""

    def __init__(self, root: Path, installation_id: str) -> None:
        self._root = root
        self._installation_id = installation_id

    def path(self, key: str) -> Path:
        return self._directory(key).home

    async def free_space(self) -> FreeSpace:
        """Return the free space of the disk; raise Unobservable if it is not mounted."""
        return await asyncio.to_thread(self._free_space)

    async def measure(self, key: str) -> HomeSize:
        """Return the size of a home and its largest entries."""
        return await asyncio.to_thread(self._measure, self._directory(key).home)

    async def usage(self, uid: int) -> QuotaUsage | None:
        """Return what a workspace's user has on the disk, or None if there are no user quotas."""
        return await asyncio.to_thread(usage_of, self._root, uid)

    async def set_quota(self, uid: int, quota: HomeQuota) -> None:
        """Limit what a workspace's user can have on the disk, if quotas are enforced there."""
        await asyncio.to_thread(self._set_quota, uid, quota)

    def is_there(self) -> bool:
        return self._root.is_dir()

    async def check(self) -> None:
        """Raise Unobservable unless the root exists and belongs to this installation."""
        await asyncio.to_thread(check_directory, self._root, self._installation_id)

    def initialise(self) -> None:
        """Mark an empty root as this installation's, and check the marker of any other root."""
        claim_directory(self._root, self._installation_id)

    async def observe(self) -> dict[str, VolumeFact | Unknown]:
        """Return all homes by workspace id; one that cannot be read is Unknown."""
        return await asyncio.to_thread(self._observe)

    async def leftovers(self) -> list[Leftover]:
        """Return all homes, and all leftovers beside them.

        A directory that cannot be read is not listed, and so not removed.
        """
        return await asyncio.to_thread(self._leftovers)

    async def status(self, key: str) -> VolumeFact | None:
        """Return the state of a home, or None if there is none."""
        return await asyncio.to_thread(self._status, self._directory(key))

    @asynccontextmanager
    async def hold(self, key: str, epoch: int) -> AsyncIterator[None]:
        """Lock a home against jobs and earlier leaders."""
        locking = asyncio.ensure_future(
            asyncio.to_thread(lock_workspace, self._directory(key), self._installation_id, epoch)
        )
        try:
            fd = await asyncio.shield(locking)
        except asyncio.CancelledError:
            # The thread cannot be cancelled, so a lock that it takes has to be released.
            locking.add_done_callback(_release)
            raise
        try:
            yield
        finally:
            os.close(fd)

    async def provision(
        self,
        key: str,
        generation: Generation,
        epoch: int,
        uid: int | None,
        files: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Make a home of this generation with these files, if there is no home."""
        await asyncio.to_thread(self._provision, self._directory(key), generation, epoch, uid, files)

    async def set_aside(self, key: str, generation: Generation, epoch: int) -> None:
        """Keep the home of this generation under another name, to make way for another one."""
        await asyncio.to_thread(self._set_aside, self._directory(key), generation, epoch)

    def _directory(self, key: str) -> WorkspaceDirectory:
        return WorkspaceDirectory.of_key(self._root, key)

    def _free_space(self) -> FreeSpace:
        check_directory(self._root, self._installation_id)
        try:
            return free_space(self._root)
        except OSError as error:
            raise Unobservable(f"{self._root} cannot be read: {error.strerror}") from error

    def _measure(self, home: Path) -> HomeSize:
        try:
            return measure(home)
        except OSError as error:
            raise Unobservable(f"{home} cannot be measured: {error.strerror}") from error

    def _set_quota(self, uid: int, quota: HomeQuota) -> None:
        if quota_state(self._root) is not QuotaState.ENFORCED:
            if quota != NO_QUOTA:
                logger.warning("HOME_QUOTA_BYTES is set, but this file system enforces no user quotas")
            return
        try:
            set_quota(self._root, uid, quota)
        except OSError as error:
            raise from_os_error(error, f"cannot set the quota of user {uid}") from error

    def _observe(self) -> dict[str, VolumeFact | Unknown]:
        seen: dict[str, VolumeFact | Unknown] = {}
        for directory in self._directories():
            try:
                fact = directory.observe()
            except OSError as error:
                seen[directory.workspace_id] = Unknown(f"{directory.home} cannot be read: {error}")
            else:
                if fact is not None:
                    seen[directory.workspace_id] = fact
        return seen

    def _leftovers(self) -> list[Leftover]:
        found = []
        for directory in self._directories():
            try:
                found += _leftovers_of(directory)
            except OSError as error:
                logger.warning("a home cannot be read", path=str(directory.path), error=str(error))
        return found

    def _directories(self) -> list[WorkspaceDirectory]:
        check_directory(self._root, self._installation_id)
        try:
            paths = list((self._root / "users").glob("*/workspaces/*"))
        except OSError as error:
            raise Unobservable(f"the homes below {self._root} cannot be listed: {error}") from error
        return [WorkspaceDirectory(self._root, path.parent.parent.name, path.name) for path in paths]

    def _status(self, directory: WorkspaceDirectory) -> VolumeFact | None:
        check_directory(self._root, self._installation_id)
        try:
            return directory.observe()
        except OSError as error:
            raise Unobservable(f"{directory.home} cannot be read: {error}") from error

    def _provision(
        self,
        directory: WorkspaceDirectory,
        generation: Generation,
        epoch: int,
        uid: int | None,
        files: Mapping[str, str],
    ) -> None:
        try:
            with locked_workspace(directory, self._installation_id, epoch):
                fact = directory.observe()
                if fact is None:
                    _make_home(directory, generation, uid, files)
                elif fact.generation is None:
                    directory.set_aside(generation.op_id)
                    _make_home(directory, generation, uid, files)
                elif fact.generation != generation:
                    raise GenerationMismatch.found(fact.generation)
        except OSError as error:
            what = f"cannot make the home of workspace {directory.workspace_id}"
            raise from_os_error(error, what) from error

    def _set_aside(self, directory: WorkspaceDirectory, generation: Generation, epoch: int) -> None:
        try:
            with locked_workspace(directory, self._installation_id, epoch):
                fact = directory.observe()
                if fact is None:
                    return
                if fact.generation != generation:
                    raise GenerationMismatch("another home has replaced the one to set aside")
                directory.set_aside(generation.op_id)
        except OSError as error:
            raise from_os_error(error, f"cannot set aside the home of {directory.workspace_id}") from error


def _leftovers_of(directory: WorkspaceDirectory) -> list[Leftover]:
    key, workspace_id, fact = directory.home_store_key, directory.workspace_id, directory.observe()
    homes = [] if fact is None else [Leftover(key, workspace_id, HOME, fact.generation)]
    return homes + [Leftover(key, workspace_id, path.name) for path in directory.all_leftovers()]


def _make_home(
    directory: WorkspaceDirectory, generation: Generation, uid: int | None, files: Mapping[str, str]
) -> None:
    prepared = directory.staging(generation.op_id)
    remove_tree(prepared)
    make_new_home(prepared, uid, files)
    directory.swap_in(prepared, generation)


def _release(locking: "asyncio.Future[int]") -> None:
    if not locking.cancelled() and locking.exception() is None:
        os.close(locking.result())
