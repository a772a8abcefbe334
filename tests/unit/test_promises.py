"""The tests that documents name exist."""

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROMISES, THREATS = ROOT / "docs" / "promises.md", ROOT / "docs" / "threat-model.md"
NAMED = re.compile(r"`(tests/[a-z0-9_/]+\.py)::(test_\w+)`")


@cache
def functions_in(path: Path) -> frozenset[str]:
    return frozenset(re.findall(r"^(?:async )?def (\w+)", path.read_text(), re.MULTILINE))


@pytest.mark.parametrize("document", [PROMISES, THREATS], ids=lambda path: path.name)
def test_every_named_test_exists(document: Path) -> None:
    named = NAMED.findall(document.read_text())
    missing = [f"{path}::{test}" for path, test in named if test not in functions_in(ROOT / path)]
    assert named and not missing


@pytest.mark.parametrize(("document", "claim"), [(PROMISES, "promise"), (THREATS, "attempt")])
def test_every_claim_names_a_test(document: Path, claim: str) -> None:
    tables = re.findall(rf"^\| {claim} \|.*\n\|[-|]+\n((?:\|.*\n)+)", document.read_text(), re.MULTILINE)
    claims = [line for table in tables for line in table.splitlines()]
    assert claims and not [line for line in claims if not NAMED.search(line)]
