"""The embedded Redis."""

import os
import shutil
import signal
import stat
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
from redis.asyncio import Redis

from codehub.embedded import redis
from codehub.embedded.redis import EmbeddedRedis
from codehub.embedded.server_processes import processes_in_directory
from tests.services import TOOLS_DIR, short_temp_dir
from tests.waiting import PATIENCE, wait_for


@pytest.fixture
async def data_dir() -> AsyncIterator[Path]:
    path = short_temp_dir()
    yield path
    for pid in processes_in_directory(path / "redis", "redis-server"):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not processes_in_directory(path / "redis", "redis-server"), "the server to end")
    shutil.rmtree(path)


async def test_it_is_private_new_enough_and_listens_on_no_port(data_dir: Path) -> None:
    server = EmbeddedRedis(data_dir, TOOLS_DIR)
    await server.start()
    client = Redis.from_url(server.url)
    assert (await client.config_get("port"))["port"] == "0"
    await client.zadd("activity", {"w": 5})
    assert await client.zadd("activity", {"w": 3}, gt=True) == 0
    assert await client.zscore("activity", "w") == 5
    await client.aclose()
    assert stat.S_IMODE((data_dir / "run" / "redis").stat().st_mode) == 0o700
    assert redis.url_of(data_dir) == server.url
    server.stop()


async def test_activity_survives_an_orderly_restart(data_dir: Path) -> None:
    server = EmbeddedRedis(data_dir, TOOLS_DIR)
    for expected in (None, b"1"):
        await server.start()
        client = Redis.from_url(server.url)
        assert await client.get("seen") == expected
        await client.set("seen", 1)
        await client.aclose()
        server.stop()


async def test_a_server_whose_up_was_killed_is_replaced(data_dir: Path) -> None:
    first, second = EmbeddedRedis(data_dir, TOOLS_DIR), EmbeddedRedis(data_dir, TOOLS_DIR)
    await first.start()
    await second.start()
    assert first.process is not None and second.process is not None
    assert first.process.wait(PATIENCE) == 0
    assert processes_in_directory(data_dir / "redis", "redis-server") == [second.process.pid]
    second.stop()


async def test_a_killed_server_starts_again(data_dir: Path) -> None:
    server = EmbeddedRedis(data_dir, TOOLS_DIR)
    await server.start()
    assert server.process is not None
    server.process.kill()
    server.process.wait()
    await server.start()
    server.stop()
