"""The storage job, except that it can be told at which step to die, or to see its coordinator die.

Where nothing is ordered it is the job as it is. Orders lie beside the directory of the jobs, and hold for one
death.
"""

import json
import os
import time
from pathlib import Path

from codehub.storage.jobs import program
from tests.chaos.crash_matrix.steps import JOB, PIDS, Orders, Steps, kill

ORDERS = "job-orders.json"
BEGUN = "jobs-begun"
"""Beside them: the name of every job that was started, as often as it was."""
WAITS = "waits"
"""In the directory of a job that has outlived its coordinator: it goes on once another takes this away."""


def main(directory: Path) -> int:
    root = directory.parent.parent
    with (root / BEGUN).open("a") as begun:
        begun.write(f"{directory.name}\n")
    if (root / ORDERS).exists():
        _obey(root / ORDERS, directory)
    return program.main([str(directory)])


def _obey(file: Path, directory: Path) -> None:
    orders = Orders(**json.loads(file.read_bytes()))
    (file.parent / PIDS[JOB]).write_text(str(os.getpid()))
    if orders.endpoint:
        os.environ["AWS_ENDPOINT_URL"] = orders.endpoint

    def die() -> None:
        file.unlink()
        kill(file.parent, orders.victims)
        _outlive(directory / WAITS, orders.holds)

    kind = json.loads((directory / program.SPEC).read_bytes())["kind"]
    # An operation may have two jobs: each step says of which it is.
    steps = Steps(orders, die, prefix=f"{kind}: ")
    steps.watch_files()
    steps.watch_objects()


def _outlive(waits: Path, holds: bool) -> None:
    if not holds:
        waits.touch()
    while holds or waits.exists():
        time.sleep(0.005)
