"""Who this installation is: its id, which disks and stores carry, and the key of its cookies."""

import secrets
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncEngine

from codehub.store.tables import installation


@dataclass(frozen=True)
class Installation:
    id: str
    cookie_key: bytes


async def ensure(engine: AsyncEngine, new_id: str) -> Installation:
    """The installation of this database; at the first start it becomes `new_id`."""
    async with engine.begin() as conn:
        await conn.execute(
            insert(installation)
            .values(id=new_id, cookie_key=secrets.token_bytes(32))
            .on_conflict_do_nothing()
        )
        row = (await conn.execute(select(installation.c.id, installation.c.cookie_key))).one()
    return Installation(row.id, bytes(row.cookie_key))
