"""A running coordinator survives missing images and a dead Redis."""

import shutil
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import insert, update
from sqlalchemy.ext.asyncio import AsyncEngine

from codehub.database import gate
from codehub.database.engine import create_engine
from codehub.database.tables import users, workspaces
from codehub.domain.states import DesiredState
from codehub.domain.user_limits import Limits
from codehub.embedded.redis import EmbeddedRedis
from tests.integration.cli.conftest import images_file, program
from tests.services import TOOLS_DIR, short_temp_dir
from tests.waiting import wait_for

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
async def engine(database_url: str) -> AsyncIterator[AsyncEngine]:
    engine = create_engine(database_url)
    async with engine.begin() as conn:
        await conn.execute(insert(users).values(id="one", username="one", password_hash="x", role="user"))
    yield engine
    await engine.dispose()


@pytest.fixture
async def workspace_id(engine: AsyncEngine) -> str:
    async with engine.begin() as conn:
        made = await gate.create(
            conn,
            owner_id="one",
            name="a name",
            description="",
            image_ref="once-offered",
            standby_ttl=None,
            archive_ttl=None,
            desired=DesiredState.ARCHIVED,
            actor="one",
            limits=Limits(1, 1),
            backends=gate.Backends("process", "local-dir"),
            now=NOW,
        )
    return made.id


async def test_an_image_that_is_no_longer_offered_is_named_and_does_not_stop_the_coordinator(
    workspace_id: str, database_url: str, redis_url: str, tmp_path: Path
) -> None:
    images = images_file(tmp_path, "images", '[[image]]\nname = "another"\nprocess = ["true"]\n')
    with program(
        "serve", "coordinator", DATABASE_URL=database_url, REDIS_URL=redis_url, IMAGES_FILE=images
    ) as coordinator:
        wait_for(lambda: "this coordinator leads" in coordinator.stderr(), "the coordinator to lead")
        assert "1 workspace of the image 'once-offered' cannot start" in coordinator.stderr()
        assert "put it back into IMAGES_FILE" in coordinator.stderr()
        assert coordinator.process.poll() is None


async def test_a_redis_that_dies_later_does_not_end_the_coordinator(
    workspace_id: str, engine: AsyncEngine, database_url: str
) -> None:
    redis_dir = short_temp_dir()
    redis = EmbeddedRedis(redis_dir, TOOLS_DIR)
    await redis.start()
    try:
        with program("serve", "coordinator", DATABASE_URL=database_url, REDIS_URL=redis.url) as coordinator:
            wait_for(lambda: "this coordinator leads" in coordinator.stderr(), "the coordinator to lead")
            redis.stop()
            async with engine.begin() as conn:
                renamed = (
                    update(workspaces).where(workspaces.c.id == workspace_id).values(name="another name")
                )
                await conn.execute(renamed)
            wait_for(lambda: "events could not be published" in coordinator.stderr(), "Redis to be missed")
            assert coordinator.process.poll() is None
    finally:
        redis.stop()
        shutil.rmtree(redis_dir)
