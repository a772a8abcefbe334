"""Fixtures: a gateway in each of its two modes. Its tests run on uvloop, as the gateway does."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import uvloop

from tests.integration.gateway.harness import World, world


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> dict[str, Any]:
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
async def origin_mode() -> AsyncIterator[World]:
    """A gateway that serves each workspace at a separate origin."""
    async with world() as made:
        yield made


@pytest.fixture
async def path_mode() -> AsyncIterator[World]:
    """A gateway in path mode, which serves everything at one origin."""
    async with world(apps=False) as made:
        yield made
