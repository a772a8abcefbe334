"""Coordinators without their start: a process that has loaded everything and becomes one for each line it reads.

It has no event loop, no thread and no connection, so that what it forks is as good as started anew. It reads
one JSON object a line and answers with the id of the process.
"""

import asyncio
import ctypes
import functools
import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

import uvloop

from codehub import log
from codehub.coordinator import house, main
from codehub.domain.decision import Decision, Event, changes
from codehub.domain.workspace import Workspace
from codehub.settings import load
from codehub.storage.jobs import LocalJobs
from codehub.store import leader
from codehub.store.records import PostgresRecords
from tests.chaos.crash_matrix.steps import COORDINATOR, PIDS, Orders, Steps, kill

_PR_SET_PDEATHSIG = 1
TOLD_BESIDES = ("touch", "expire", "purge", "remember", "condemn")
"""What a leader commits besides decisions about one workspace."""


def serve() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            _become(json.loads(line))
        print(pid, flush=True)


def _become(order: dict[str, Any]) -> None:
    """A coordinator, until it is killed."""
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        output = os.open(order["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with open(os.devnull) as nothing:
            os.dup2(nothing.fileno(), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        _coordinate(order)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(1)


def _coordinate(order: dict[str, Any]) -> None:
    os.environ.update(order["environment"])
    settings = load(**order["settings"])
    log.configure(COORDINATOR, settings.log_level)
    (settings.data_dir / PIDS[COORDINATOR]).write_text(str(os.getpid()))
    if order["python"]:
        main.LocalJobs = functools.partial(LocalJobs, python=order["python"])  # type: ignore[misc]
    if order["orders"]:
        orders = Orders(**order["orders"])
        watch(Steps(orders, lambda: kill(Path(orders.root), orders.victims)))
    uvloop.run(_run(settings))


async def _run(settings: Any) -> None:
    await main.run(settings, asyncio.Event())


def watch(steps: Steps) -> None:
    steps.watch_files()
    steps.watch_objects()
    _watch_office(steps)
    _watch_decisions(steps)
    for name in TOLD_BESIDES:
        _watch_method(steps, name)


def _watch_office(steps: Steps) -> None:
    real = leader.campaign

    async def campaign(url: str, holder: str) -> leader.Term | None:
        with steps.at("take office"):
            return await real(url, holder)

    house.leader.campaign = campaign


def _watch_decisions(steps: Steps) -> None:
    real = PostgresRecords.save

    async def save(self: PostgresRecords, before: Workspace, decision: Decision, now: Any) -> Workspace:
        if not decision.writes(before):
            return await real(self, before, decision, now)
        with steps.at(_name_of(before, decision)):
            return await real(self, before, decision, now)

    PostgresRecords.save = save  # type: ignore[method-assign]


def _name_of(before: Workspace, decision: Decision) -> str:
    if decision.event is None:
        columns = sorted(changes(before, decision.after).keys() - {"observed_at", "progress_at"})
        return f"commit {', '.join(columns)}"
    operation = decision.after if decision.event is Event.CLAIMED else before
    return f"commit {decision.event.value} {operation.operation.value}"


def _watch_method(steps: Steps, name: str) -> None:
    real = getattr(PostgresRecords, name)

    async def watched(self: PostgresRecords, *args: Any) -> Any:
        with steps.at(f"commit {name}"):
            return await real(self, *args)

    setattr(PostgresRecords, name, watched)


if __name__ == "__main__":
    serve()
