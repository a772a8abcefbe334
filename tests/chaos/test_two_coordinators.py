"""Two coordinators: under every disturbance, only the leader acts, and only once."""

import random
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from codehub.domain.states import DesiredState
from tests.chaos import audit, disturbances
from tests.chaos.coordinators import Coordinator, CoordinatorInstallation, eventually
from tests.chaos.disturbances import Disturbance, wait_until_busy
from tests.chaos.moving_workspaces import InvariantMonitor, MovingWorkspace, create, keep_moving, settle
from tests.selection import SEED, sample

WORKSPACES = 6


class Environment:
    """Installation with two coordinators and workspaces that move."""

    def __init__(self, installation: CoordinatorInstallation) -> None:
        self.installation = installation
        self.moving_workspaces: list[MovingWorkspace] = []
        self.monitor = InvariantMonitor(installation)

    async def prepare(self) -> None:
        await self.installation.wait_for_leader_and_standby()
        while len(self.moving_workspaces) < WORKSPACES:
            self.moving_workspaces.append(
                await MovingWorkspace.begin(self.installation, SEED * 1000 + len(self.moving_workspaces))
            )
        for workspace in self.moving_workspaces:
            await workspace.finish_move()

    @asynccontextmanager
    async def under_audit(self) -> AsyncIterator[None]:
        """Move every workspace during the block; then check the audit log, homes and containers."""
        async with self.installation.engine.connect() as conn:
            bookmark = await audit.last_write(conn)
        async with keep_moving(self.moving_workspaces, self.monitor):
            yield
        await self._check_audit_log(bookmark)
        self._check_homes_and_containers()
        assert len(self.installation.alive) == 2, f"a coordinator ended\n{self.installation.log_tails()}"
        await self.installation.wait_for_leader_and_standby()

    async def _check_audit_log(self, bookmark: int) -> None:
        async with self.installation.engine.connect() as conn:
            writes = await audit.writes_since(conn, bookmark)
            terms = await audit.terms(conn)
        roles = {coordinator.role for coordinator in self.installation.coordinators}
        audit.check_fencing(writes, terms, roles)
        audit.check_single_writer(writes, roles)
        operations = audit.operations(writes)
        assert len(operations) >= WORKSPACES
        audit.check_archiving(operations)
        audit.check_timeline(writes, operations)
        self.monitor.check()
        made = {operation.archive_op_id for operation in operations if operation.archive_op_id is not None}
        assert made <= self.monitor.complete_archives()

    def _check_homes_and_containers(self) -> None:
        for workspace in self.moving_workspaces:
            workspace.check_home()
            workspace.check_container()

    async def check_failover(self) -> None:
        """Check that a former leader can lead again once its successor is killed."""
        leader, standby = await self.installation.leader(), await self.installation.standby()
        leader.send(signal.SIGKILL)
        assert await self.installation.another_leader(leader) is standby


@pytest.fixture(scope="module")
def shared_environment() -> Iterator[Environment]:
    with CoordinatorInstallation.running() as installation:
        yield Environment(installation)


@pytest.fixture
async def environment(shared_environment: Environment) -> AsyncIterator[Environment]:
    async with shared_environment.installation.connected():
        await shared_environment.prepare()
        yield shared_environment


@pytest.mark.parametrize(
    "disturb", sample(disturbances.EACH, 3, "disturbances"), ids=lambda disturb: disturb.__name__
)
async def test_workspaces_move_correctly_under_each_disturbance(
    environment: Environment, disturb: Disturbance
) -> None:
    epoch = await environment.installation.epoch()
    async with environment.under_audit():
        await wait_until_busy(environment.installation)
        await disturb(environment.installation)
    if await environment.installation.epoch() != epoch:
        await environment.check_failover()


@pytest.mark.full
async def test_workspaces_move_correctly_under_all_disturbances_in_sequence(environment: Environment) -> None:
    order = random.Random(SEED).sample(disturbances.ALL, len(disturbances.ALL))
    print(*(disturb.__name__ for disturb in order))
    async with environment.under_audit():
        for disturb in order:
            await environment.installation.wait_for_leader_and_standby()
            await wait_until_busy(environment.installation)
            await disturb(environment.installation)
    for workspace in environment.moving_workspaces:
        await workspace.move(DesiredState.STANDBY)
    await environment.check_failover()


async def test_a_request_during_a_listener_outage_is_handled_after_the_reconnect(
    environment: Environment,
) -> None:
    """The periodic pass runs hourly here, so only a resync can find the request."""
    installation = environment.installation
    leader = await installation.leader()
    epoch = await installation.epoch()
    async with disturbances.no_new_sessions(installation, leader):
        await disturbances.end_listener_session(installation)
        await wait_for_refused_connection(leader)
        workspace_id = await create(installation, DesiredState.STANDBY, "created during the outage")
        await wait_for_refused_connection(leader)
        (row,) = await installation.rows(
            "SELECT operation, phase FROM workspaces WHERE id = :id", id=workspace_id
        )
        assert row == {"operation": "NONE", "phase": "PENDING"}, "a coordinator saw the request"
    await settle(installation, workspace_id, DesiredState.STANDBY)
    assert await installation.epoch() == epoch, "another leader handled the request"


async def wait_for_refused_connection(coordinator: Coordinator) -> None:
    """Wait until the listener's next attempt to connect fails."""
    before = coordinator.count_logged("PostgreSQL notifications are interrupted")

    async def again() -> bool:
        return coordinator.count_logged("PostgreSQL notifications are interrupted") > before

    await eventually(again, "the listener to be refused")
