"""Fixtures of every layer."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping

import hypothesis
import pytest
import uvloop
from redis.asyncio import Redis

from tests import s3
from tests.services import Services, System

pytest_plugins = ["tests.selection", "tests.schedule", "tests.report", "tests.skips", "tests.pauses"]

# How long an example takes tells of the machine, not of the code.
hypothesis.settings.register_profile(
    "codehub", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("codehub")


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Tests run on the event loop that CodeHub runs on."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture(scope="session")
def services() -> Iterator[Services]:
    """A real PostgreSQL and Redis, started at the first test that asks."""
    with Services.running() as running:
        yield running


@pytest.fixture
async def database_url(services: Services) -> AsyncIterator[str]:
    """A fresh database with CodeHub's schema."""
    url = await services.migrated_database()
    yield url
    await services.drop_database(url)


@pytest.fixture
async def empty_database_url(services: Services) -> AsyncIterator[str]:
    """A fresh database without a schema."""
    url = await services.empty_database()
    yield url
    await services.drop_database(url)


@pytest.fixture
async def redis_url(services: Services) -> str:
    """A Redis with nothing in it."""
    client = Redis.from_url(services.redis.url)
    await client.flushall()
    await client.aclose()
    return services.redis.url


@pytest.fixture(scope="session")
def s3_server() -> Iterator[s3.S3Server]:
    """A real S3 server, started at the first test that asks."""
    with s3.S3Server.running() as server:
        yield server


@pytest.fixture
def s3_url(s3_server: s3.S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty archive store on the S3 server, and the AWS variables that lead to it."""
    s3.use(s3_server.environment(), monkeypatch)
    return s3.new_store_url()


@pytest.fixture
def make_system() -> Iterator[Callable[..., System]]:
    """Makes whole systems (`make_system(TTL_STANDBY_SECONDS="4")`), and ends all that belongs to them."""
    made: list[System] = []

    def make(**environment: str) -> System:
        made.append(System(environment))
        return made[-1]

    yield make
    for system in made:
        system.close()


@pytest.fixture
def up(make_system: Callable[..., System]) -> System:
    """A whole system, started and ready."""
    return make_system().start()
