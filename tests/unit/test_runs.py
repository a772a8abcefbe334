"""Selection, scheduling and report of a test run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import schedule, selection

SUITE = """
import pytest

@pytest.mark.full
def test_long(): pass

def test_good(): pass

def test_bad(): raise AssertionError("as planned")
"""


def run_suite(
    directory: Path, suite: str = SUITE, *arguments: str, **environment: str
) -> "subprocess.CompletedProcess[str]":
    """Run a suite, or the tests of it that the arguments name."""
    file = directory / "test_suite.py"
    file.write_text(suite)
    if not any("::" in argument for argument in arguments):
        arguments = (*arguments, str(file))
    (directory / "pytest.ini").write_text("[pytest]\n")
    plugins = [f"-p{name}" for name in ("tests.selection", "tests.report")]
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("CODEHUB_TEST", "CODEHUB_REPEAT"))
    }
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-pno:cacheprovider", *plugins, *arguments],
        capture_output=True, text=True, check=False, env=inherited | {"CODEHUB_TEST_SEED": "7"} | environment,
    )  # fmt: skip


SAMPLED_SUITE = """
import pytest

pytestmark = pytest.mark.sampled(3, "test_each")

@pytest.mark.parametrize("number", range(20))
def test_each(number): pass

def test_always(): pass
"""


def test_a_sampled_file_runs_some_of_its_tests_and_a_named_one_always(tmp_path: Path) -> None:
    suite = tmp_path / "test_suite.py"

    def collected(*names: str) -> set[str]:
        output = run_suite(tmp_path, SAMPLED_SUITE, *names, "--collect-only", "-q").stdout
        return {line.partition("::")[2] for line in output.splitlines() if "::" in line}

    found = collected()
    assert len(found) == 4
    assert "test_always" in found
    left_out = next(f"test_each[{number}]" for number in range(20) if f"test_each[{number}]" not in found)
    assert collected(f"{suite}::{left_out}") == {left_out}


def test_a_run_ends_with_the_times_and_the_commands_that_repeat_its_failures(tmp_path: Path) -> None:
    repeat = tmp_path / "results" / "repeat"
    done = run_suite(tmp_path, CODEHUB_REPEAT_FAILED=str(repeat))
    assert done.returncode == 1
    assert "selection: representatives, seed 7" in done.stdout
    assert "1 failed, 1 passed, 1 deselected" in done.stdout
    assert "s of tests in" in done.stdout
    assert "test_suite.py::test_bad failed (call)" in done.stdout
    [command] = repeat.read_text().splitlines()
    assert command in done.stdout
    assert command.startswith("env CODEHUB_TEST_SEED=7 .venv/bin/python -m pytest '")
    assert command.endswith("test_suite.py::test_bad'")


def test_several_runs_list_the_failures_of_all(tmp_path: Path) -> None:
    repeat = tmp_path / "repeat"
    for _ in range(2):
        run_suite(tmp_path, CODEHUB_REPEAT_FAILED=str(repeat))
    assert len(repeat.read_text().splitlines()) == 2


def test_everything_includes_tests_marked_full(tmp_path: Path) -> None:
    done = run_suite(tmp_path, CODEHUB_TEST_ALL="1")
    assert "selection: everything" in done.stdout
    assert "1 failed, 2 passed" in done.stdout


def test_a_sample_depends_on_the_seed_and_keeps_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "EVERYTHING", False)
    chosen = {}
    for seed in range(40):
        monkeypatch.setattr(selection, "SEED", seed)
        chosen[seed] = selection.sample(range(100), 5, "cells")
        assert chosen[seed] == selection.sample(range(100), 5, "cells") == sorted(set(chosen[seed]))
        assert len(chosen[seed]) == 5
        assert chosen[seed] != selection.sample(range(100), 5, "histories")
    assert len({tuple(cases) for cases in chosen.values()}) > 30
    assert len({case for cases in chosen.values() for case in cases}) > 70


def test_a_sample_of_everything_is_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "EVERYTHING", True)
    assert selection.sample(range(100), 5, "cells") == list(range(100))


@pytest.mark.parametrize(
    ("nodeid", "unit"),
    [
        ("tests/unit/cli/test_up.py::test_a", "tests/unit/cli/test_up.py"),
        ("tests/docker/test_lifecycle.py::test_a[b::c]", "tests/docker/"),
        ("tests/e2e/test_new_user_journey.py::test_the_journey", "tests/e2e/"),
    ],
)
def test_a_worker_takes_a_file_or_a_directory_that_shares_a_server(nodeid: str, unit: str) -> None:
    assert schedule.unit_of(nodeid) == unit
