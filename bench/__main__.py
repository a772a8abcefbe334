"""`python -m bench`: every measurement, or those that are named."""

import argparse
import fcntl
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench import archives, machine, s3, tools, up
from bench.control import measure as control
from bench.gateway import measure as gateway
from bench.start import measure as start
from codehub.storage.child_processes import remove_tree
from tests.services import short_temp_dir

LOCK = Path("/tmp/codehub-bench.lock")


@dataclass(frozen=True)
class Scale:
    rounds: int
    starts: int
    seconds: int
    tree: float
    patience: float


FULL = Scale(rounds=3, starts=7, seconds=6, tree=1.0, patience=600)
QUICK = Scale(rounds=1, starts=1, seconds=1, tree=0.02, patience=0)

PARTS: dict[str, Callable[[Path, machine.Quiet, Scale], None]] = {
    "control": lambda place, quiet, scale: control.measure(quiet, scale.rounds, scale.tree),
    "gateway": lambda place, quiet, scale: gateway.measure(place, quiet, scale.rounds, scale.seconds),
    "archives": lambda place, quiet, scale: archives.measure(place, quiet, scale.rounds, scale.tree),
    "s3": lambda place, quiet, scale: s3.measure(place, quiet, scale.rounds, scale.tree),
    "start": lambda place, quiet, scale: start.measure(place, quiet, scale.starts),
    "up": lambda place, quiet, scale: up.measure(quiet, scale.starts),
}


def main() -> int:
    arguments = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    arguments.add_argument(
        "parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all of them by default"
    )
    arguments.add_argument(
        "--quick", action="store_true", help="tiny rounds: whether it works, not how fast it is"
    )
    arguments.add_argument(
        "--place",
        type=Path,
        default=Path("/tmp"),
        help="where homes and archives lie while they are measured",
    )
    asked = arguments.parse_args()
    if unknown := set(asked.parts) - set(PARTS):
        arguments.error(f"there is no {', '.join(sorted(unknown))}: choose from {', '.join(PARTS)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that everything it started is ended
    with LOCK.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("another measurement is under way on this machine", file=sys.stderr)
            return 1
        run(asked.parts or list(PARTS), QUICK if asked.quick else FULL, asked.place)
    return 0


def run(parts: list[str], scale: Scale, within: Path) -> None:
    tools.use_tools()
    quiet = machine.Quiet(scale.patience)
    measured = machine.version()
    if scale is QUICK:
        print("Quick: these rounds show that it works, and no figures to compare.", flush=True)
    for name in parts:
        place = short_temp_dir(within)
        try:
            PARTS[name](place, quiet, scale)
        except tools.MissingToolError as reason:
            print(f"\nSkipped {name}: {reason}", flush=True)
        finally:
            remove_tree(place)
    print("\n" + "\n".join(f"- {name}: {words}" for name, words in machine.facts()))
    if measured != machine.version():
        print(f"- The code changed during the run; it began with {measured}.")


if __name__ == "__main__":
    sys.exit(main())
