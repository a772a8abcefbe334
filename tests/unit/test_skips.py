"""A skip that hides something fails, where it is asked to; everywhere else it is a skip."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.skips import OPTIONAL, hides

ROOT = Path(__file__).parents[2]
ASKED = {"CODEHUB_NO_SKIPS": "1"}
TESTS = """
import pytest

def test_passes():
    pass

@pytest.fixture
def engine():
    pytest.skip("dockerd does not run here")

def test_of_the_engine(engine):
    pass

@pytest.mark.skipif(True, reason="needs bubblewrap")
def test_of_the_sandbox():
    pass

def test_of_an_ordinary_user():
    pytest.skip("root can read everything")

@pytest.mark.xfail
def test_that_is_known_to_fail():
    raise AssertionError
"""


@pytest.mark.parametrize(
    ("asked", "outcome"),
    [({}, "1 passed, 3 skipped, 1 xfailed"), (ASKED, "1 passed, 1 skipped, 1 xfailed")],
)
def test_a_skip_that_hides_something_fails(tmp_path: Path, asked: dict[str, str], outcome: str) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    environment = {name: value for name, value in os.environ.items() if name not in ASKED}
    command = [sys.executable, "-m", "pytest", "-p", "tests.skips", "-p", "no:cacheprovider", "-rfE"]
    ended = subprocess.run(
        [*command, "-c", os.devnull, "--rootdir", tmp_path, tmp_path],
        cwd=ROOT, env=environment | asked, capture_output=True, text=True, check=False,
    )  # fmt: skip
    said = ended.stdout
    assert outcome in said, said + ended.stderr
    assert ended.returncode == (1 if asked else 0)
    for hidden in ("dockerd does not run here", "needs bubblewrap"):
        assert (f"skipped where it should have run: {hidden}" in said) == bool(asked), said


@pytest.mark.parametrize("reason", OPTIONAL)
def test_what_was_installed_is_not_missing(tmp_path: Path, reason: str) -> None:
    assert not hides(f"{reason}, it says", ASKED, tmp_path)
    (tmp_path / OPTIONAL[reason]).touch()
    assert hides(f"{reason}, it says", ASKED, tmp_path)
    assert not hides(f"{reason}, it says", {}, tmp_path)
