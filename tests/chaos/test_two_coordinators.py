"""Two coordinators on one installation: whatever happens, wishes come true once, by the one that leads."""

import random
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from codehub.domain.states import DesiredState
from tests.chaos import audit, disturbances
from tests.chaos.coordinators import Coordinator, Site, eventually
from tests.chaos.disturbances import Disturbance, busy
from tests.chaos.travellers import Traveller, Watch, create, settle, travelling
from tests.selection import SEED, sample

WORKSPACES = 6


class Stage:
    """A site with two coordinators, and workspaces that travel."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.travellers: list[Traveller] = []
        self.watch = Watch(site)

    async def prepare(self) -> None:
        await self.site.complete()
        while len(self.travellers) < WORKSPACES:
            self.travellers.append(await Traveller.begin(self.site, SEED * 1000 + len(self.travellers)))
        for traveller in self.travellers:
            await traveller.arrive()

    @asynccontextmanager
    async def scene(self) -> AsyncIterator[None]:
        """Everybody moves while the block runs; afterwards all must be as if nothing had happened."""
        async with self.site.engine.connect() as conn:
            bookmark = await audit.last_write(conn)
        async with travelling(self.travellers, self.watch):
            yield
        await self._check_audit(bookmark)
        self._check_world()
        assert len(self.site.alive) == 2, f"a coordinator ended by itself\n{self.site.last_words()}"
        await self.site.complete()

    async def _check_audit(self, bookmark: int) -> None:
        async with self.site.engine.connect() as conn:
            writes = await audit.writes_since(conn, bookmark)
            reigns = await audit.reigns(conn)
        roles = {coordinator.role for coordinator in self.site.coordinators}
        audit.check_office(writes, reigns, roles)
        audit.check_single_writer(writes, roles)
        operations = audit.operations(writes)
        assert len(operations) >= WORKSPACES
        audit.check_archiving(operations)
        audit.check_timeline(writes, operations)
        self.watch.look()
        made = {one.archive_op_id for one in operations if one.archive_op_id is not None}
        assert made <= self.watch.complete_archives()

    def _check_world(self) -> None:
        for traveller in self.travellers:
            traveller.check_home()
            traveller.check_container()

    async def check_succession(self) -> None:
        """Whoever has lost the office can take it again, as soon as its successor is killed."""
        leader, standby = await self.site.leader(), await self.site.standby()
        leader.send(signal.SIGKILL)
        assert await self.site.another_leader(leader) is standby


@pytest.fixture(scope="module")
def the_stage() -> Iterator[Stage]:
    with Site.running() as site:
        yield Stage(site)


@pytest.fixture
async def stage(the_stage: Stage) -> AsyncIterator[Stage]:
    async with the_stage.site.connected():
        await the_stage.prepare()
        yield the_stage


@pytest.mark.parametrize(
    "disturb", sample(disturbances.EACH, 3, "disturbances"), ids=lambda disturb: disturb.__name__
)
async def test_a_disturbance_changes_nothing_that_matters(stage: Stage, disturb: Disturbance) -> None:
    epoch = await stage.site.epoch()
    async with stage.scene():
        await busy(stage.site)
        await disturb(stage.site)
    if await stage.site.epoch() != epoch:
        await stage.check_succession()


@pytest.mark.full
async def test_all_disturbances_in_one_history(stage: Stage) -> None:
    order = random.Random(SEED).sample(disturbances.ALL, len(disturbances.ALL))
    print(*(disturb.__name__ for disturb in order))
    async with stage.scene():
        for disturb in order:
            await stage.site.complete()
            await busy(stage.site)
            await disturb(stage.site)
    for traveller in stage.travellers:
        await traveller.move(DesiredState.STANDBY)
    await stage.check_succession()


async def test_a_wish_that_no_listener_heard_is_acted_on_when_it_listens_again(stage: Stage) -> None:
    """The periodic pass comes once an hour here: only a resync can have found it."""
    site = stage.site
    leader = await site.leader()
    epoch = await site.epoch()
    async with disturbances.no_new_sessions(site, leader):
        await disturbances.end_listener_session(site)
        await refused(leader)
        workspace_id = await create(site, DesiredState.STANDBY, "unheard")
        await refused(leader)
        (row,) = await site.rows("SELECT operation, phase FROM workspaces WHERE id = :id", id=workspace_id)
        assert row == {"operation": "NONE", "phase": "PENDING"}, "somebody heard the wish"
    await settle(site, workspace_id, DesiredState.STANDBY)
    assert await site.epoch() == epoch, "another leader has found it"


async def refused(coordinator: Coordinator) -> None:
    """Wait until its listener tries to connect once more, in vain."""
    before = coordinator.told("PostgreSQL notifications are interrupted")

    async def again() -> bool:
        return coordinator.told("PostgreSQL notifications are interrupted") > before

    await eventually(again, "the listener to be refused")
