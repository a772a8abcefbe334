"""`python -m bench`: run all benchmarks, or the named ones."""

import argparse
import fcntl
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench import archives, codehub_up, machine, s3, tools
from bench.commands import measure as commands
from bench.control import measure as control
from bench.gateway import measure as gateway
from bench.sampler import Sampler
from bench.start import measure as start
from codehub.storage.child_processes import remove_tree
from tests.services import short_temp_dir

LOCK = Path("/tmp/codehub-bench.lock")


@dataclass(frozen=True)
class Scale:
    """Size of a run."""

    rounds: int
    starts: int
    seconds: int
    homes: float
    """Factor for the size of homes and the number of rows."""
    noise_budget: float
    """Seconds that a whole run may spend on waiting for a quiet machine and on repeated samples."""


FULL = Scale(rounds=3, starts=7, seconds=6, homes=1.0, noise_budget=600)
QUICK = Scale(rounds=1, starts=1, seconds=1, homes=0.02, noise_budget=0)

PARTS: dict[str, Callable[[Path, Sampler, Scale], None]] = {
    "control": lambda directory, sampler, scale: control.measure(sampler, scale.rounds, scale.homes),
    "gateway": lambda directory, sampler, scale: gateway.measure(
        directory, sampler, scale.rounds, scale.seconds
    ),
    "archives": lambda directory, sampler, scale: archives.measure(
        directory, sampler, scale.rounds, scale.homes
    ),
    "s3": lambda directory, sampler, scale: s3.measure(directory, sampler, scale.rounds, scale.homes),
    "start": lambda directory, sampler, scale: start.measure(directory, sampler, scale.starts),
    "commands": lambda directory, sampler, scale: commands.measure(directory, scale.rounds, scale.homes),
    "up": lambda directory, sampler, scale: codehub_up.measure(sampler, scale.starts),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"one of {', '.join(PARTS)} (default: all of them)"
    )
    parser.add_argument(
        "--quick", action="store_true", help="run tiny rounds that only show that the benchmarks work"
    )
    parser.add_argument(
        "--directory",
        type=Path,
        default=Path("/tmp"),
        help="directory for the measured homes and archives (default: /tmp)",
    )
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"unknown part {', '.join(sorted(unknown))}: choose from {', '.join(PARTS)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that child processes are ended
    with LOCK.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("another benchmark is running on this machine: wait until it ends", file=sys.stderr)
            return 1
        run(options.parts or list(PARTS), QUICK if options.quick else FULL, options.directory)
    return 0


def run(parts: list[str], scale: Scale, parent: Path) -> None:
    tools.extend_path()
    sampler = Sampler(scale.noise_budget)
    version = machine.version()
    if scale is QUICK:
        print("Quick run: it shows that the benchmarks work. Do not compare its figures.", flush=True)
    for name in parts:
        directory = short_temp_dir(parent)
        try:
            PARTS[name](directory, sampler, scale)
        except tools.MissingToolError as reason:
            print(f"\nSkipped {name}: {reason}", flush=True)
        finally:
            remove_tree(directory)
    print("\n" + "\n".join(f"- {name}: {value}" for name, value in machine.describe()))
    if version != machine.version():
        print(f"- The code changed during the run, which began with {version}.")


if __name__ == "__main__":
    sys.exit(main())
