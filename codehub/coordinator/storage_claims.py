"""Claims of the volumes and the archive store, made once per installation (ADR 0020).

A claim is a conditional write of the installation's marker to an empty location. The database
records the claim afterwards, so that an interrupted claim is repeated. From then on, an empty
location means a disk that is not mounted, and is never claimed again.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

import structlog

from codehub.database.engine import create_unpooled_engine
from codehub.database.installation import PostgresClaims
from codehub.domain.storage_root import StorageRoot
from codehub.settings import Settings
from codehub.storage.archive.async_archive_store import ArchiveStore
from codehub.storage.errors import StorageProblem
from codehub.storage.jobs.spec import StorageLocation
from codehub.storage.volumes.local_volumes import LocalVolumes

logger = structlog.get_logger(__name__)


def make_storage_location(settings: Settings, installation_id: str) -> StorageLocation:
    """Return where the homes and archives of this installation are."""
    return StorageLocation(settings.data_dir / "volumes", settings.archive_store_url, installation_id)


class Claims(Protocol):
    """Repository of the claims that were made."""

    async def unclaimed(self) -> set[StorageRoot]: ...
    async def record(self, root: StorageRoot) -> None: ...


async def claim_storage(claims: Claims, location: StorageLocation, *, create: bool) -> list[str]:
    """Claim what was never claimed, or raise StorageProblem with what is in the way.

    Without `create`, a directory that does not exist is left to the coordinator, which may run on
    another machine. Return the locations that are left.
    """
    volumes = LocalVolumes(location.volumes_root, location.installation_id)
    archives = ArchiveStore(location.archive_url, location.installation_id)

    async def claim_volumes() -> None:
        await asyncio.to_thread(volumes.initialise)

    unclaimed = await claims.unclaimed()
    left: list[str] = []
    for root, where, is_there, claim in (
        (StorageRoot.VOLUMES, str(location.volumes_root), volumes.is_there, claim_volumes),
        (StorageRoot.ARCHIVES, location.archive_url, archives.is_there, archives.initialise),
    ):
        if root not in unclaimed:
            continue
        if not create and not is_there():
            left.append(where)
            continue
        await claim()
        await claims.record(root)
        logger.debug("claimed for this installation", location=root.value, where=where)
    return left


def make_claim_attempt(database_url: str, location: StorageLocation) -> Callable[[], Awaitable[bool]]:
    """Return a function that attempts the claims, and returns whether everything is claimed."""

    async def attempt() -> bool:
        engine = create_unpooled_engine(database_url)
        try:
            await claim_storage(PostgresClaims(engine), location, create=True)
        except StorageProblem as problem:
            logger.error("a storage location cannot be claimed; no workspace starts", reason=problem.message)
            return False
        finally:
            await engine.dispose()
        logger.debug("volumes and archive store are claimed")
        return True

    return attempt
