"""Storage job that a file can instruct to kill itself or its coordinator at a step.

Without instructions it is the job of production. The instructions are beside the directory of the
jobs, and are removed at the crash.
"""

import json
import os
import time
from pathlib import Path

from codehub.storage.jobs import program
from tests.chaos.crash_matrix.steps import JOB, PIDS, Instructions, Steps, kill

INSTRUCTIONS = "job-instructions.json"
STARTED_JOBS = "started-jobs"
"""File beside the instructions with one line for each start of a job."""
WAITING = "waiting-for-adoption"
"""File in the directory of a job that survived its coordinator; the next coordinator removes it."""


def main(directory: Path) -> int:
    root = directory.parent.parent
    with (root / STARTED_JOBS).open("a") as started:
        started.write(f"{directory.name}\n")
    if (root / INSTRUCTIONS).exists():
        _follow(root / INSTRUCTIONS, directory)
    return program.main([str(directory)])


def _follow(file: Path, directory: Path) -> None:
    instructions = Instructions(**json.loads(file.read_bytes()))
    (file.parent / PIDS[JOB]).write_text(str(os.getpid()))
    if instructions.endpoint:
        os.environ["AWS_ENDPOINT_URL"] = instructions.endpoint

    def die() -> None:
        file.unlink()
        kill(file.parent, instructions.victims)
        _pause(directory / WAITING, instructions.stays_paused)

    kind = json.loads((directory / program.SPEC).read_bytes())["kind"]
    # An operation may have two jobs: the prefix tells their steps apart.
    steps = Steps(instructions, die, prefix=f"{kind}: ")
    steps.watch_files()
    steps.watch_objects()


def _pause(waiting: Path, stays_paused: bool) -> None:
    """Wait until a coordinator adopts this job, or for good."""
    if not stays_paused:
        waiting.touch()
    while stays_paused or waiting.exists():
        time.sleep(0.005)
