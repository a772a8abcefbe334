"""A migrated database with two users."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from codehub.database import gate
from codehub.database.engine import create_engine
from codehub.database.tables import users
from codehub.domain.other_backends import Backends
from codehub.domain.states import DesiredState
from codehub.domain.user_limits import Limits
from codehub.domain.workspace import Workspace

LIMITS = Limits(2, 3)
BACKENDS = Backends("process", "local-dir")


@pytest.fixture
async def engine(database_url: str) -> AsyncIterator[AsyncEngine]:
    engine = create_engine(database_url, pool_size=20)
    async with engine.begin() as conn:
        for name in ("one", "two"):
            await conn.execute(users.insert().values(id=name, username=name, password_hash="x", role="user"))
    yield engine
    await engine.dispose()


async def create(
    conn: AsyncConnection, owner: str = "one", desired: DesiredState = DesiredState.STANDBY
) -> Workspace:
    return await gate.create(
        conn,
        owner_id=owner,
        name="a name",
        description="",
        image_ref="code-server",
        standby_ttl=None,
        archive_ttl=None,
        desired=desired,
        actor=owner,
        limits=LIMITS,
        backends=BACKENDS,
        now=datetime.now(UTC),
    )
