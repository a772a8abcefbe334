"""Failed sign-ins that are remembered are bounded, and a flood does not end a lockout."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from codehub.database import lockout
from codehub.database.engine import create_engine
from codehub.database.tables import login_failures
from codehub.domain.problems import TooManyRequests

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ADMIN = "admin@192.0.2.1"


@pytest.fixture
async def engine(database_url: str) -> AsyncIterator[AsyncEngine]:
    engine = create_engine(database_url)
    yield engine
    await engine.dispose()


async def test_a_flood_of_names_is_forgotten_and_a_locked_account_is_not(engine: AsyncEngine) -> None:
    async with engine.begin() as conn:
        for _ in range(5):
            await lockout.record_failure(conn, ADMIN, NOW)
        for number in range(30):
            await lockout.record_failure(conn, f"made-up-{number}@192.0.2.1", NOW)
        assert await lockout.forget_excess(conn, most=10, at_once=15) == 15
        assert await lockout.forget_excess(conn, most=10, at_once=15) == 6
        assert await lockout.forget_excess(conn, most=10, at_once=15) == 0
        left = (await conn.scalars(select(login_failures.c.key))).all()
        assert len(left) == 10 and ADMIN in left
        with pytest.raises(TooManyRequests):
            await lockout.raise_if_locked(conn, ADMIN, NOW)
