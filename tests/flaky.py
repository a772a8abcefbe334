"""Run tests many times under load, to find flaky ones: `python -m tests.flaky N TEST...`.

Each round is a new pytest process with random pauses of another seed (tests/pauses.py). Busy loops
beside it compete for the processors. The report names the command that repeats each failure.
"""

import argparse
import os
import random
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from tests.pauses import SEED, SWITCH

LAST_LINES = 25
NOTHING_RAN = {
    4: "pytest rejected its arguments",
    5: "pytest selected no test (one that is marked `full` needs CODEHUB_TEST_ALL=1)",
}
REPEATED_SETTINGS = ("CODEHUB_TEST_ALL", "CODEHUB_TEST_SEED", SWITCH, SEED)
# Ends with its parent, even if the parent was killed.
BUSY_LOOP = "import os, sys\nwhile os.getppid() == int(sys.argv[1]): pass"


@dataclass(frozen=True)
class Round:
    """One run of the tests, and how it ended."""

    number: int
    environment: Mapping[str, str]
    command: Sequence[str]
    output: Path
    exit_code: int

    def repeat(self) -> str:
        """Return the command line that runs this round once more."""
        settings = [
            f"{name}={self.environment[name]}" for name in REPEATED_SETTINGS if self.environment.get(name)
        ]
        return shlex.join(["env", *settings, *self.command])


class NoTestRan(Exception):  # noqa: N818 - what happened
    """pytest ran no test, and would not in any other round."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"flaky: {message}\n")


def main() -> int:
    options = _read_options()
    for number in (signal.SIGINT, signal.SIGTERM):
        # SIGINT too, because a shell ignores it for background jobs.
        signal.signal(number, signal.default_int_handler)
    outputs = Path(tempfile.mkdtemp(prefix="codehub-flaky-"))
    first_seed = random.randrange(1_000_000)
    rounds: list[Round] = []
    interrupted = False
    try:
        with busy_loops(options.load):
            for number in range(1, options.rounds + 1):
                seed = None if options.no_pauses else first_seed + number
                rounds.append(_run_round(number, seed, options.tests, outputs))
    except NoTestRan as problem:
        sys.stderr.write(f"flaky: {problem}\n")
        return 2
    except KeyboardInterrupt:
        interrupted = True
    failed = [ended for ended in rounds if ended.exit_code]
    _report(failed, len(rounds), outputs)
    if interrupted:
        return 130
    return 1 if failed else 0


def _read_options() -> argparse.Namespace:
    parser = _Parser(prog="python -m tests.flaky", description="Run tests many times under load.")
    parser.add_argument("rounds", metavar="N", type=_whole_number, help="how many times")
    parser.add_argument(
        "tests", metavar="TEST", nargs="+", help="files, directories or test ids, as for pytest"
    )
    parser.add_argument(
        "--load", type=_whole_number, default=2, help="busy loops beside the tests (default: 2)"
    )
    parser.add_argument("--no-pauses", action="store_true", help="add no random pauses")
    options = parser.parse_args()
    if options.rounds == 0:
        parser.error("N must be at least 1")
    for test in options.tests:
        if not Path(test.partition("::")[0]).exists():
            parser.error(f"there is no test {test}")
    return options


def _whole_number(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """Keep `count` processors busy."""
    command = [sys.executable, "-S", "-c", BUSY_LOOP, str(os.getpid())]
    loops: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(count):
            loops.append(subprocess.Popen(command, process_group=0))
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def _run_round(number: int, seed: int | None, tests: Sequence[str], outputs: Path) -> Round:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *tests]
    environment = {name: value for name, value in os.environ.items() if name not in (SWITCH, SEED)}
    if seed is not None:
        environment |= {SWITCH: "1", SEED: str(seed)}
    output = outputs / f"round-{number}.txt"
    began = time.monotonic()
    exit_code = _run_pytest(command, environment, output)
    seconds = time.monotonic() - began
    if exit_code in NOTHING_RAN:
        raise NoTestRan(f"{NOTHING_RAN[exit_code]}; its output is in {output}")
    outcome = "passed" if exit_code == 0 else f"FAILED (exit code {exit_code})"
    shown_seed = "no pauses" if seed is None else f"seed {seed}"
    print(f"round {number:3}  {shown_seed}  {seconds:7.1f} s  {outcome}", flush=True)
    return Round(number, environment, command, output, exit_code)


def _run_pytest(command: Sequence[str], environment: Mapping[str, str], output: Path) -> int:
    with output.open("wb") as file:
        # Its own process group, so that Ctrl-C reaches pytest once, from this process.
        process = subprocess.Popen(
            command, env=environment, process_group=0,
            stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        return process.wait()
    except KeyboardInterrupt:
        process.send_signal(signal.SIGINT)
        process.wait()  # pytest stops what its fixtures have started
        raise
    finally:
        process.kill()  # after a second Ctrl-C
        process.wait()


def _report(failed: Sequence[Round], rounds: int, outputs: Path) -> None:
    for ended in failed:
        lines = ended.output.read_text(errors="replace").splitlines()[-LAST_LINES:]
        print(f"\nround {ended.number} failed; {ended.output} ends with:")
        print("\n".join(f"    {line}" for line in lines))
        print(f"To repeat it:\n    {ended.repeat()}")
    print(f"\n{len(failed)} of {rounds} rounds failed. All output is in {outputs}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
