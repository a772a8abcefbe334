"""With CODEHUB_NO_SKIPS, a skip of a test that should have run fails."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.skips import OPTIONAL, should_have_run

ROOT = Path(__file__).parents[2]
NO_SKIPS = {"CODEHUB_NO_SKIPS": "1"}
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
    ("switch", "outcome"),
    [({}, "1 passed, 3 skipped, 1 xfailed"), (NO_SKIPS, "1 passed, 1 skipped, 1 xfailed")],
)
def test_a_skip_that_hides_something_fails(tmp_path: Path, switch: dict[str, str], outcome: str) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    environment = {name: value for name, value in os.environ.items() if name not in NO_SKIPS}
    command = [sys.executable, "-m", "pytest", "-p", "tests.skips", "-p", "no:cacheprovider", "-rfE"]
    ended = subprocess.run(
        [*command, "-c", os.devnull, "--rootdir", tmp_path, tmp_path],
        cwd=ROOT, env=environment | switch, capture_output=True, text=True, check=False,
    )  # fmt: skip
    output = ended.stdout
    assert outcome in output, output + ended.stderr
    assert ended.returncode == (1 if switch else 0)
    for hidden in ("dockerd does not run here", "needs bubblewrap"):
        assert (f"skipped where it should have run: {hidden}" in output) == bool(switch), output


@pytest.mark.parametrize("reason", OPTIONAL)
def test_an_optional_part_that_was_installed_must_not_be_missing(tmp_path: Path, reason: str) -> None:
    assert not should_have_run(f"{reason}: details", NO_SKIPS, tmp_path)
    (tmp_path / OPTIONAL[reason]).touch()
    assert should_have_run(f"{reason}: details", NO_SKIPS, tmp_path)
    assert not should_have_run(f"{reason}: details", {}, tmp_path)
