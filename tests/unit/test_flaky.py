"""`python -m tests.flaky` finds flaky tests, and prints the command that repeats a failure."""

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.pauses import SEED, SWITCH
from tests.waiting import wait_for

ROOT = Path(__file__).parents[2]
EVERY_OTHER_SEED = f"""
import os

def test_some():
    assert os.environ["{SWITCH}"] == "1"
    assert int(os.environ["{SEED}"]) % 2, "an even seed"
"""
WITHOUT_PAUSES = f"""
import os

def test_some():
    assert "{SWITCH}" not in os.environ and "{SEED}" not in os.environ
"""
HANGS = """
import pathlib, time

def test_some():
    here = pathlib.Path(__file__).parent
    (here / "begun").touch()
    try:
        time.sleep(600)
    finally:
        (here / "cleaned-up").touch()
"""
FLAKY = [sys.executable, "-m", "tests.flaky"]


@pytest.fixture
def test_file(tmp_path: Path) -> Path:
    return tmp_path / "test_some.py"


@pytest.fixture
def flaky_environment(tmp_path: Path) -> dict[str, str]:
    return os.environ | {
        "TMPDIR": str(tmp_path),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        SWITCH: "1",
        SEED: "x",
    }


def flaky(environment: dict[str, str], *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*FLAKY, *map(str, arguments)],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_a_failure_is_counted_shown_and_repeatable(
    test_file: Path, flaky_environment: dict[str, str]
) -> None:
    test_file.write_text(EVERY_OTHER_SEED)
    ended = flaky(flaky_environment, 2, test_file, "--load", 1)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    outcomes = re.findall(r"^round +(\d+)  seed (\d+) +[\d.]+ s  (passed|FAILED)", ended.stdout, re.MULTILINE)
    assert [(number, outcome) for number, seed, outcome in outcomes] in (
        [("1", "passed"), ("2", "FAILED")], [("1", "FAILED"), ("2", "passed")],
    )  # fmt: skip
    assert "1 of 2 rounds failed" in ended.stdout
    assert "AssertionError: an even seed" in ended.stdout
    [directory] = re.findall(r"All output is in (\S+)", ended.stdout)
    assert sorted(path.name for path in Path(directory).iterdir()) == ["round-1.txt", "round-2.txt"]
    [command] = re.findall(r"To repeat it:\n +(.+)", ended.stdout)
    repeated = subprocess.run(
        shlex.split(command), cwd=ROOT, env=flaky_environment, capture_output=True, text=True, check=False
    )
    assert repeated.returncode == 1
    assert "an even seed" in repeated.stdout


def test_without_failures_and_pauses(test_file: Path, flaky_environment: dict[str, str]) -> None:
    test_file.write_text(WITHOUT_PAUSES)
    ended = flaky(flaky_environment, 2, "--no-pauses", "--load", 0, test_file)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "0 of 2 rounds failed" in ended.stdout


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.full), signal.SIGKILL]
)
def test_the_load_ends_with_the_run(
    test_file: Path, flaky_environment: dict[str, str], number: signal.Signals
) -> None:
    test_file.write_text(HANGS)
    process = psutil.Popen(
        [*FLAKY, "3", test_file], cwd=ROOT, env=flaky_environment, stdout=subprocess.PIPE, text=True
    )
    children: list[psutil.Process] = []
    try:
        wait_for((test_file.parent / "begun").exists, "the first round to begin")
        children = process.children(recursive=True)
        loops = [child for child in children if "-S" in child.cmdline()]
        assert len(loops) == 2
        process.send_signal(number)
        output, _ = process.communicate()
        wait_for(lambda: not any(map(is_alive, loops)), "the load to end")
    finally:
        for survivor in filter(is_alive, [process, *children]):
            survivor.kill()
    if number == signal.SIGKILL:
        return
    assert process.returncode == 130
    assert "0 of 0 rounds failed" in output
    assert (test_file.parent / "cleaned-up").exists()


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ([], "the following arguments are required: N, TEST"),
        (["many", "tests/unit"], "argument N: 'many' is not a whole number"),
        (["0", "tests/unit"], "N must be at least 1"),
        (["3", "tests/no_such_test.py::test_some"], "there is no test tests/no_such_test.py::test_some"),
        (["3", "tests/unit", "--load", "-1"], "argument --load: '-1' is not a whole number"),
        (["3", "tests/unit", "--fast"], "unrecognized arguments: --fast"),
    ],
)
def test_a_bad_argument_gets_an_error_in_one_line(
    flaky_environment: dict[str, str], arguments: list[str], error: str
) -> None:
    ended = flaky(flaky_environment, *arguments)
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert ended.stderr.startswith(f"flaky: {error}"), ended.stderr
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("test_id", "error"), [("", "pytest selected no test"), ("::test_other", "pytest rejected its arguments")]
)
def test_a_run_without_tests_ends_at_once(
    test_file: Path, flaky_environment: dict[str, str], test_id: str, error: str
) -> None:
    test_file.touch()
    ended = flaky(flaky_environment, 3, f"{test_file}{test_id}", "--load", 0)
    assert ended.returncode == 2
    assert ended.stderr.startswith(f"flaky: {error}"), ended.stderr
    assert Path(ended.stderr.split()[-1]).exists()
