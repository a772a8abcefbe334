"""The storage job, except that it can be told at which step to die.

Where nothing is ordered it is the job as it is. Orders lie beside the directory of the jobs, and hold for one
death.
"""

import json
import os
from pathlib import Path

from codehub.storage import job
from tests.chaos.crash_matrix.steps import JOB, PIDS, Orders, Steps, kill

ORDERS = "job-orders.json"


def main(directory: Path) -> int:
    orders = directory.parent.parent / ORDERS
    if orders.exists():
        _obey(orders, json.loads((directory / job.SPEC).read_bytes())["kind"])
    return job.main([str(directory)])


def _obey(file: Path, kind: str) -> None:
    orders = Orders(**json.loads(file.read_bytes()))
    (file.parent / PIDS[JOB]).write_text(str(os.getpid()))
    if orders.endpoint:
        os.environ["AWS_ENDPOINT_URL"] = orders.endpoint

    def die() -> None:
        file.unlink()
        kill(file.parent, orders.victims)

    # An operation may have two jobs: each step says of which it is.
    steps = Steps(orders, die, prefix=f"{kind}: ")
    steps.watch_files()
    steps.watch_objects()
