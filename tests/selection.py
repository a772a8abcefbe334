"""Selection of tests: `make test` runs representatives, `make test-all` runs everything.

A test marked `full` runs in `make test-all` only. If a layer has many similar cases, such as the
cells of the crash matrix or the histories of the simulation, `sample` picks some by a seed. The
mark `sampled` does the same with the tests of a file. The seed comes from the commit: each
commit runs other cases, and the same commit always runs the same ones.
"""

import os
import random
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import pytest

T = TypeVar("T")
EVERYTHING = os.environ.get("CODEHUB_TEST_ALL") == "1"


def _seed() -> int:
    if given := os.environ.get("CODEHUB_TEST_SEED"):
        return int(given)
    found = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    )
    return int(found.stdout[:8] or "0", 16) % 1_000_000


SEED = _seed()


def sample(cases: Sequence[T], count: int, name: str) -> list[T]:
    """Return `count` of the cases in their order; all of them in `make test-all`."""
    if EVERYTHING or count >= len(cases):
        return list(cases)
    chosen = random.Random(f"{SEED} {name}").sample(range(len(cases)), count)
    return [cases[index] for index in sorted(chosen)]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "full: runs in `make test-all` only")
    config.addinivalue_line(
        "markers", "sampled(count, prefix): runs if it is among `count` of its file's tests with this prefix"
    )
    os.environ["CODEHUB_TEST_SEED"] = str(SEED)  # the same in every worker


def pytest_report_header() -> str:
    if EVERYTHING:
        return "selection: everything"
    return f"selection: representatives, seed {SEED} (CODEHUB_TEST_SEED={SEED} selects the same ones)"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if EVERYTHING:
        return
    left_out = {item for item in items if item.get_closest_marker("full")} | _not_sampled(items)
    if left_out:
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]


def _not_sampled(items: Sequence[pytest.Item]) -> set[pytest.Item]:
    """Return the tests marked `sampled` that are not chosen. Tests marked `full` do not take part."""
    files: dict[tuple[Path, int], list[pytest.Item]] = {}
    for item in items:
        mark = item.get_closest_marker("sampled")
        if mark is not None and item.name.startswith(mark.args[1]) and not item.get_closest_marker("full"):
            files.setdefault((item.path, mark.args[0]), []).append(item)
    left_out: set[pytest.Item] = set()
    for (path, count), tests in files.items():
        left_out |= set(tests) - set(sample(tests, count, f"tests of {path.name}"))
    return left_out
