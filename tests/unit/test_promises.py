"""Documents that name tests name tests that exist."""

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "docs" / "promises.md"]
NAMED = re.compile(r"`(tests/[a-z0-9_/]+\.py)::(test_\w+)`")


@cache
def functions_in(path: Path) -> frozenset[str]:
    return frozenset(re.findall(r"^(?:async )?def (\w+)", path.read_text(), re.MULTILINE))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_named_test_exists(document: Path) -> None:
    named = NAMED.findall(document.read_text())
    missing = [f"{path}::{test}" for path, test in named if test not in functions_in(ROOT / path)]
    assert named and not missing


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_promise_names_a_test(document: Path) -> None:
    rows = [line for line in document.read_text().splitlines() if line.startswith("|")]
    promises = [line for line in rows if not line.startswith(("|---", "| promise"))]
    assert promises and not [line for line in promises if not NAMED.search(line)]
