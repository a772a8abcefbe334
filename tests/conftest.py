"""Fixtures of all layers."""

# First: it keeps structlog from loading Rich. A traceback with the local variables of a whole control
# plane takes Rich 8 s, in which the event loop stands still.
from codehub import log

# isort: split
import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any

import hypothesis
import pytest
import structlog
import uvloop
from redis.asyncio import Redis

from tests import s3
from tests.services import Services, System

pytest_plugins = ["tests.selection", "tests.schedule", "tests.report", "tests.skips", "tests.pauses"]

# The duration of an example depends on the machine, not on the code.
hypothesis.settings.register_profile(
    "codehub", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("codehub")

_configure_structlog = structlog.configure


def _configure_without_cache(**configuration: Any) -> None:
    """Configure structlog so that no logger keeps the configuration of the test that first used it."""
    _configure_structlog(**configuration | {"cache_logger_on_first_use": False})


structlog.configure = _configure_without_cache


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run tests on the event loop that CodeHub uses."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture(autouse=True)
def own_log_configuration() -> Iterator[None]:
    """Undo what a test changes of the log."""
    configuration, root = structlog.get_config(), logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    structlog.configure(**configuration)
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.getLogger(log.AUDIT).handlers.clear()


@pytest.fixture(scope="session")
def services() -> Iterator[Services]:
    """Real PostgreSQL and Redis, started for the first test that needs them."""
    with Services.running() as running:
        yield running


@pytest.fixture
async def database_url(services: Services) -> AsyncIterator[str]:
    """A new database with CodeHub's schema."""
    url = await services.migrated_database()
    yield url
    await services.drop_database(url)


@pytest.fixture
async def empty_database_url(services: Services) -> AsyncIterator[str]:
    """A new database without a schema."""
    url = await services.empty_database()
    yield url
    await services.drop_database(url)


@pytest.fixture
async def redis_url(services: Services) -> str:
    """An empty Redis."""
    client = Redis.from_url(services.redis.url)
    await client.flushall()
    await client.aclose()
    return services.redis.url


@pytest.fixture(scope="session")
def s3_server() -> Iterator[s3.S3Server]:
    """A real S3 server, started for the first test that needs it."""
    with s3.S3Server.running() as server:
        yield server


@pytest.fixture
def s3_url(s3_server: s3.S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty archive store on the S3 server, with the AWS variables for it."""
    s3.use(s3_server.environment(), monkeypatch)
    return s3.new_store_url()


@pytest.fixture
def make_system() -> Iterator[Callable[..., System]]:
    """Make whole systems (`make_system(TTL_STANDBY_SECONDS="4")`), and end all their processes."""
    made: list[System] = []

    def make(**environment: str) -> System:
        made.append(System(environment))
        return made[-1]

    yield make
    for system in made:
        system.close()


@pytest.fixture
def up(make_system: Callable[..., System]) -> System:
    """A whole system that is ready."""
    return make_system().start()
