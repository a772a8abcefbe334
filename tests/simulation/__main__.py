"""Live through one history again, and tell it: `python -m tests.simulation SEED [WORKSPACE]`."""

import logging
import os
import sys

import structlog

from tests.simulation.history import run
from tests.simulation.reality import Violation


def main() -> int:
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.execve(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]],
                  os.environ | {"PYTHONHASHSEED": "0"})  # fmt: skip
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        outcome = run(int(sys.argv[1]))
    except Violation as violation:
        told, words = violation.story, f"{violation}"
    else:
        told, words = outcome.story, f"all is well after {outcome.steps} changes"
    about = sys.argv[2][-3:] if len(sys.argv) > 2 else None
    for line in told:
        if about is None or line[11:14] in (about, "---"):
            print(line)
    print(words)
    return 0


if __name__ == "__main__":
    sys.exit(main())
