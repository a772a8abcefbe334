"""The API and `/readyz` while PostgreSQL or Redis has no space left."""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from redis.asyncio import Redis

from codehub import health_endpoints
from codehub.database import migrate
from codehub.domain.health_checks import CheckName
from codehub.domain.states import Role
from codehub.embedded.postgres import EmbeddedPostgres
from codehub.embedded.private_paths import make_dir
from codehub.embedded.redis import EmbeddedRedis
from codehub.settings import Settings
from tests.integration.api.conftest import Api
from tests.integration.storage.conftest import small_disk
from tests.integration.storage.test_one_disk import Disk
from tests.services import TOOLS_DIR, short_temp_dir

INODES = 6000


@pytest.fixture
async def disk_path() -> AsyncIterator[Path]:
    """A small disk with a PostgreSQL and nothing else."""
    made = short_temp_dir(Path("/tmp"))
    async with small_disk(made / "d", 200, inodes=INODES):
        make_dir(made / "d" / "pg", 0o711)
        postgres = EmbeddedPostgres(made / "d" / "pg", TOOLS_DIR, durable=False)
        await postgres.start()
        try:
            await migrate.upgrade(postgres.url)
            yield made / "d"
        finally:
            postgres.stop()
    shutil.rmtree(made)


@pytest.fixture
async def small_disk_api(disk_path: Path, redis_url: str) -> AsyncIterator[Api]:
    url = EmbeddedPostgres(disk_path / "pg", TOOLS_DIR).url
    settings = Settings(database_url=url, redis_url=redis_url, data_dir=disk_path, port=8080)
    async with Api.running(settings) as api:
        yield api


async def database_space(api: Api) -> tuple[bool, str]:
    found = await health_endpoints.check_readiness(api.settings.database_url, api.settings.redis_url)
    assert found.checks[CheckName.DATABASE].ok
    check = found.checks[CheckName.DATABASE_SPACE]
    assert (CheckName.DATABASE_SPACE in found.degraded) is not check.ok
    return check.ok, check.remedy


async def test_a_full_disk_of_the_database_is_a_507_with_its_cause_and_degrades(
    small_disk_api: Api, disk_path: Path
) -> None:
    disk, person = Disk(disk_path), await small_disk_api.quick_client("ada", Role.USER)
    workspace = await small_disk_api.workspace(person)
    assert await database_space(small_disk_api) == (True, "")
    disk.leave(0)
    refused = await write_until_refused(person, workspace["id"])
    assert refused.status_code == 507
    error = refused.json()["error"]
    assert error["code"] == "INSUFFICIENT_STORAGE"
    assert error["message"].startswith("The disk of CodeHub's database is full")
    assert "Ask an admin to make room" in error["message"]
    ok, remedy = await database_space(small_disk_api)
    assert not ok and "delete workspaces without an archive" in remedy
    assert (await person.get("/api/v1/workspaces")).json()["total"] == 1, "what is there can be read"

    disk.make_room()
    assert await database_space(small_disk_api) == (True, "")
    await small_disk_api.workspace(person, name="two")


async def write_until_refused(person: httpx.AsyncClient, workspace_id: str) -> httpx.Response:
    """Write until PostgreSQL fails: pages with free space still accept some writes."""
    for number in range(2000):
        memo = {"memo": os.urandom(8000).hex() + str(number)}
        answer = await person.patch(f"/api/v1/workspaces/{workspace_id}", json=memo)
        if answer.status_code != 200:
            return answer
    raise AssertionError("PostgreSQL takes writes although its disk is full")


async def test_a_disk_without_inodes_degrades(small_disk_api: Api, disk_path: Path) -> None:
    assert await database_space(small_disk_api) == (True, "")
    ballast = disk_path / "files"
    ballast.mkdir()
    await asyncio.to_thread(use_up_inodes, ballast)
    assert (await database_space(small_disk_api))[0] is False
    shutil.rmtree(ballast)
    assert await database_space(small_disk_api) == (True, "")


def use_up_inodes(directory: Path) -> None:
    for number in range(os.statvfs(directory).f_favail):
        (directory / f"{number}").touch()


async def test_a_full_redis_fails_readiness(api: Api) -> None:
    data_dir = short_temp_dir()
    redis = EmbeddedRedis(data_dir, TOOLS_DIR)
    await redis.start()
    try:
        async with Redis.from_url(redis.url) as client:
            await client.config_set("maxmemory", 1)
            found = await health_endpoints.check_readiness(api.settings.database_url, redis.url)
            check = found.checks[CheckName.REDIS]
            assert check.message == "Redis answers, but rejects writes: its disk or its memory is full."
            await client.config_set("maxmemory", 0)
            found = await health_endpoints.check_readiness(api.settings.database_url, redis.url)
            assert found.checks[CheckName.REDIS].ok
    finally:
        redis.stop()
        shutil.rmtree(data_dir)
