"""The identity of an installation, which never changes."""

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from codehub.database import installation, migrate
from codehub.database.engine import create_engine
from codehub.database.installation import UidBaseMismatch
from tests.integration.database.conftest import create


async def test_the_id_and_key_of_the_first_start_remain(engine: AsyncEngine) -> None:
    first = await installation.load_or_create_installation(engine, "first", 2_000_000)
    assert first.id == "first"
    assert await installation.load_or_create_installation(engine, "second", 2_000_000) == first


async def test_the_uid_base_is_fixed_once_a_workspace_exists(engine: AsyncEngine) -> None:
    await installation.load_or_create_installation(engine, "here", 2_000_000)
    await installation.load_or_create_installation(engine, "here", 3_000_000)
    async with engine.begin() as conn:
        await create(conn)
    with pytest.raises(UidBaseMismatch, match=r"is 2000000, but .* from 3000000 on.*: set it to 3000000"):
        await installation.load_or_create_installation(engine, "here", 2_000_000)
    await installation.load_or_create_installation(engine, "here", 3_000_000)


async def test_a_workspace_before_the_first_coordinator_fixes_nothing(
    engine: AsyncEngine,
) -> None:
    async with engine.begin() as conn:
        await create(conn)
    await installation.load_or_create_installation(engine, "here", 3_000_000)


async def test_an_installation_of_an_earlier_version_keeps_its_uid_base(database_url: str) -> None:
    await migrate.downgrade(database_url, "0003")
    engine = create_engine(database_url)
    async with engine.begin() as conn:
        await conn.execute(text("INSERT INTO installation (id, cookie_key) VALUES ('here', 'key')"))
    await engine.dispose()
    await migrate.upgrade(database_url)
    async with engine.begin() as conn:
        insert = "INSERT INTO users (id, username, password_hash, role) VALUES ('one', 'one', 'x', 'user')"
        await conn.execute(text(insert))
        await create(conn)
    with pytest.raises(UidBaseMismatch):
        await installation.load_or_create_installation(engine, "here", 3_000_000)
    assert (await installation.load_or_create_installation(engine, "here", 2_000_000)).id == "here"
    await engine.dispose()
