"""The databases that other tests get."""

import asyncpg
from redis.asyncio import Redis


async def test_a_test_database_has_the_schema_and_nothing_in_it(database_url: str) -> None:
    connection = await asyncpg.connect(database_url)
    try:
        assert await connection.fetchval("SELECT count(*) FROM workspaces") == 0
    finally:
        await connection.close()


async def test_a_test_redis_is_empty(redis_url: str) -> None:
    client = Redis.from_url(redis_url)
    assert await client.dbsize() == 0
    await client.aclose()
