"""Distribution of tests by pytest-xdist: a worker takes a whole file, or a whole directory.

Slow files come first, so that the run does not end with one busy worker and idle ones.
"""

from typing import Any

import pytest

TOGETHER = ("tests/docker/", "tests/e2e/")
"""Directories whose tests share an engine, or a browser and a system, that take long to start."""
FIRST = (
    "tests/e2e/",
    "tests/docker/",
    "tests/chaos/",
    "tests/simulation/",
    "tests/integration/gateway/",
    "tests/integration/runtimes/",
    "tests/integration/",
)


def unit_of(nodeid: str) -> str:
    """Return what one worker takes as a whole."""
    path = nodeid.partition("::")[0]
    return next((directory for directory in TOGETHER if path.startswith(directory)), path)


def _priority(item: pytest.Item) -> int:
    path = item.nodeid.partition("::")[0]
    return next((rank for rank, start in enumerate(FIRST) if path.startswith(start)), len(FIRST))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_priority)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    class UnitScheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return unit_of(nodeid)

    return UnitScheduling(config, log)
