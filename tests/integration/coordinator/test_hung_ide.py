"""A real coordinator replaces an IDE that hangs, at its start or later."""

import os
import signal
from datetime import timedelta

import pytest

from codehub.coordinator.clock_and_ids import REAL
from codehub.coordinator.leadership_loop import rules_of
from codehub.domain.states import Operation, Phase
from codehub.domain.workspace import Workspace
from codehub.host.processes import descendants
from codehub.runtimes.process.state_directory import KeeperState, StateDirectory
from tests.integration.coordinator.conftest import CoordinatorStack
from tests.integration.coordinator.test_life import controller_of
from tests.waiting import eventually, until

RETRY_WAIT = timedelta(seconds=40)
"""Longer than the wait for a silent container and the wait for a retry."""


class Leader:
    """A leader whose clock the test advances."""

    def __init__(self, stack: CoordinatorStack, epoch: int, workspace_id: str) -> None:
        self.passed = timedelta(0)
        self._bench = stack
        self._workspace_id = workspace_id
        self._controller = controller_of(stack, epoch, lambda: REAL.clock() + self.passed)
        self.start_time = rules_of(stack.settings).timeouts[Operation.STARTING]

    async def reconcile(self) -> Workspace:
        await self._controller.reconcile(self._workspace_id)
        return await self._bench.get(self._workspace_id)

    async def attempt(self) -> str | None:
        """Return the attempt that started the current container."""
        fact = await self._bench.providers.runtime.status(self._workspace_id)
        return fact.op_id if fact.running else None


async def leader_of(stack: CoordinatorStack, workspace_id: str) -> Leader:
    return Leader(stack, await stack.take_leadership(), workspace_id)


def state_of(stack: CoordinatorStack, workspace_id: str) -> KeeperState:
    state = StateDirectory(stack.settings.data_dir / "runtime" / workspace_id).read_state()
    assert state is not None
    return state


def freeze(stack: CoordinatorStack, workspace_id: str) -> None:
    """Send SIGSTOP to every process of the workspace."""
    for process in descendants(state_of(stack, workspace_id).keeper.pid):
        process.send(signal.SIGSTOP)


async def test_a_start_that_hangs_is_tried_again_within_its_operation(stack: CoordinatorStack) -> None:
    workspace_id = await stack.create(image="hangs-once")
    leader = await leader_of(stack, workspace_id)
    hung = await eventually(
        leader.reconcile, "the IDE to run", lambda w: w.conditions["infra.container_exists"].status
    )
    first = await leader.attempt()
    assert first == f"{hung.op_id}-0"
    home = await stack.home(workspace_id)
    await until((home / "started").exists, "the first IDE to hang")
    leader.passed += leader.start_time * 0.45
    assert (await leader.reconcile()).error_count == 0, "it still has time"
    leader.passed += leader.start_time * 0.1
    failed = await leader.reconcile()
    assert (failed.operation, failed.op_id, failed.error_count) == (Operation.STARTING, hung.op_id, 1)
    leader.passed += RETRY_WAIT
    running = await eventually(
        leader.reconcile, "the second IDE to answer", lambda w: w.phase is Phase.RUNNING
    )
    assert (running.operation, running.error_count) == (Operation.NONE, 1)
    assert await leader.attempt() == f"{hung.op_id}-1"
    entries = "\n".join(await stack.timeline(workspace_id))
    assert (
        "failed: Attempt 1 during STARTING failed and will be retried: The IDE runs and has not answered"
        in entries
    )


@pytest.mark.full
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: its processes are another user's")
async def test_a_running_ide_that_hangs_is_replaced(stack: CoordinatorStack) -> None:
    await stack.start()
    workspace_id = await stack.create()
    ran = await stack.until_phase(workspace_id, Phase.RUNNING)
    leader = await leader_of(stack, workspace_id)
    await leader.reconcile()
    keeper = state_of(stack, workspace_id).keeper
    freeze(stack, workspace_id)
    leader.passed += timedelta(hours=1)
    assert (await leader.reconcile()).phase is Phase.RUNNING, "30 s are not over"
    leader.passed += RETRY_WAIT
    starting = await eventually(leader.reconcile, "a start", lambda w: w.operation is Operation.STARTING)
    assert state_of(stack, workspace_id).keeper == keeper, "it has half of the time of a start to come back"
    leader.passed += leader.start_time * 0.55
    running = await eventually(leader.reconcile, "an IDE that answers", lambda w: w.phase is Phase.RUNNING)
    assert state_of(stack, workspace_id).keeper != keeper
    assert running.error_count == 0 and running.started_at != ran.started_at
    assert await leader.attempt() == f"{starting.op_id}-0"
    entries = [entry for entry in await stack.timeline(workspace_id) if "answer" in entry]
    assert [entry.split(":")[0] for entry in entries] == ["died", "replaced"]
