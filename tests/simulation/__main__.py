"""Live through histories.

`python -m tests.simulation SEED [WORKSPACE]` tells one of them, all or what happened to one workspace;
`python -m tests.simulation FIRST-LAST` lives through many and names those that break a contract.
"""

import hashlib
import logging
import os
import sys

import structlog

from tests.simulation.history import run
from tests.simulation.reality import Violation


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
        return live_through(int(first), int(last))
    tell(int(first), sys.argv[2] if len(sys.argv) > 2 else None)
    return 0


def live_through(first: int, last: int) -> int:
    """One line for each history: its seed, and a digest of its story or what went wrong."""
    failures = 0
    for seed in range(first, last + 1):
        try:
            story = "\n".join(run(seed).story)
            print(seed, "well", hashlib.sha256(story.encode()).hexdigest()[:16], flush=True)
        except Violation as violation:
            failures += 1
            print(seed, "broken", str(violation).replace("\n", " "), flush=True)
    return 1 if failures else 0


def tell(seed: int, workspace_id: str | None) -> None:
    try:
        story, words = run(seed).story, "all is well"
    except Violation as violation:
        story, words = list(violation.story), str(violation)
    for line in story:
        if workspace_id is None or line[11:14] in (workspace_id[-3:], "---"):
            print(line)
    print(words)


if __name__ == "__main__":
    sys.exit(main())
