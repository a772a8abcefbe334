"""The gateway runs on uvloop, so its tests do."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import uvloop

from tests.integration.gateway.harness import World, world


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> dict[str, Any]:
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
async def origin() -> AsyncIterator[World]:
    """Each workspace in an origin of its own."""
    async with world() as made:
        yield made


@pytest.fixture
async def path() -> AsyncIterator[World]:
    """Everything on one origin."""
    async with world(apps=False) as made:
        yield made
