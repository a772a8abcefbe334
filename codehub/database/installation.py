"""Identity of this installation: its id, the key of its cookies, and its range of Unix users."""

import secrets
from dataclasses import dataclass
from typing import Final

from sqlalchemy import exists, func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncEngine

from codehub.database.tables import installation, workspaces
from codehub.domain.storage_root import StorageRoot

_CLAIMED_AT: Final = {
    StorageRoot.VOLUMES: installation.c.volumes_claimed_at,
    StorageRoot.ARCHIVES: installation.c.archives_claimed_at,
}


@dataclass(frozen=True)
class Installation:
    id: str
    cookie_key: bytes


class UidBaseMismatch(Exception):  # noqa: N818 - a fact, not a fault
    """Conflict of WORKSPACE_UID_BASE with the Unix users that own files in homes and archives."""


async def load_or_create_installation(engine: AsyncEngine, new_id: str, uid_base: int) -> Installation:
    """Return the installation of this database, created with `new_id` at the first start.

    The owners of files in homes and archives follow from `uid_base`. It is fixed once a workspace
    exists.
    """
    async with engine.begin() as conn:
        await conn.execute(
            insert(installation)
            .values(id=new_id, cookie_key=secrets.token_bytes(32), uid_base=uid_base)
            .on_conflict_do_nothing()
        )
        has_workspaces = exists(select(workspaces.c.id))
        await conn.execute(update(installation).where(~has_workspaces).values(uid_base=uid_base))
        row = (await conn.execute(select(installation))).one()
    if row.uid_base != uid_base:
        raise UidBaseMismatch(
            f"WORKSPACE_UID_BASE is {uid_base}, but the files in the homes and archives of this installation "
            f"belong to users from {row.uid_base} on, and others cannot read them: set it to {row.uid_base}"
        )
    return Installation(row.id, bytes(row.cookie_key))


async def find_id(engine: AsyncEngine) -> str | None:
    """Return the id of this installation, or None before its first start."""
    async with engine.connect() as conn:
        return await conn.scalar(select(installation.c.id))


class PostgresClaims:
    """Record of the claimed storage locations. A claim is never withdrawn."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def unclaimed(self) -> set[StorageRoot]:
        async with self._engine.connect() as conn:
            row = (await conn.execute(select(installation))).one_or_none()
        return {root for root, column in _CLAIMED_AT.items() if row is None or row._mapping[column] is None}

    async def record(self, root: StorageRoot) -> None:
        column = _CLAIMED_AT[root]
        async with self._engine.begin() as conn:
            await conn.execute(update(installation).where(column.is_(None)).values({column: func.now()}))
