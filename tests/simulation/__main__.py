"""Run simulated histories.

`python -m tests.simulation SEED [WORKSPACE]` prints one history, or what happened to one workspace.
`python -m tests.simulation FIRST-LAST` runs many, and reports those that break a contract.
"""

import hashlib
import logging
import os
import sys

import structlog

from tests.simulation.history import run
from tests.simulation.world import Violation


def main() -> int:
    if os.environ.get("PYTHONHASHSEED") != "0":
        repeatable = os.environ | {"PYTHONHASHSEED": "0"}
        os.execve(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]], repeatable)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    first, dash, last = sys.argv[1].partition("-")
    if dash:
        return run_histories(int(first), int(last))
    print_history(int(first), sys.argv[2] if len(sys.argv) > 2 else None)
    return 0


def run_histories(first: int, last: int) -> int:
    """Print one line per history: its seed, and a digest of its events or what went wrong."""
    failures = 0
    for seed in range(first, last + 1):
        try:
            events = "\n".join(run(seed).events)
            print(seed, "well", hashlib.sha256(events.encode()).hexdigest()[:16], flush=True)
        except Violation as violation:
            failures += 1
            print(seed, "broken", str(violation).replace("\n", " "), flush=True)
    return 1 if failures else 0


def print_history(seed: int, workspace_id: str | None) -> None:
    try:
        events, result = run(seed).events, "no contract was broken"
    except Violation as violation:
        events, result = list(violation.events), str(violation)
    for line in events:
        if workspace_id is None or line[11:14] in (workspace_id[-3:], "---"):
            print(line)
    print(result)


if __name__ == "__main__":
    sys.exit(main())
