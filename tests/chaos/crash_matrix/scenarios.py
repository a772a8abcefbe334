"""What is played: every operation, from where it begins, by which wish, to which end."""

import hashlib
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from codehub.domain.states import DesiredState, Phase
from codehub.domain.wishes import archive_op_id_of
from codehub.domain.workspace import RecoverSource
from codehub.store import gate
from tests.chaos.crash_matrix.lane import GC, LIMITS, OWNER, PURGED, Lane
from tests.trees import make_tree, tree_hash

NOTHING, EMPTY, OLDER, NEWER = "nothing", "empty", "older", "newer"
"""What a home or an archive may hold: the homes of the stages are two, one made from the other."""

Wish = Callable[[Lane], Awaitable[None]]


@dataclass(frozen=True)
class Scenario:
    name: str
    wish: Wish
    phase: Phase
    home: str
    archive: str
    stage: str = ""
    """Empty: the wish is what makes the workspace."""
    begin: str = ""
    """Of a RUNNING workspace: the step that begins the operation."""
    settings: Mapping[str, object] = field(default_factory=dict)
    purged: bool = False
    in_error: bool = False
    only: str = ""
    """The steps to die at, where the others are those of another scenario."""

    async def is_reached(self, lane: Lane) -> bool:
        if self.purged and (lane.store.names() or not await lane.ask(PURGED, lane.workspace_id)):
            return False
        return await lane.rests_at(self.phase)


def _created(desired: DesiredState) -> Wish:
    return lambda lane: lane.create(desired)


def _wished(desired: DesiredState) -> Wish:
    return lambda lane: lane.wish(desired)


async def _delete(lane: Lane) -> None:
    async with lane.transaction() as conn:
        await gate.delete(conn, lane.workspace_id, actor=OWNER, now=datetime.now(UTC))


async def _delete_beside_container(lane: Lane) -> None:
    """A container that a late leader has started on what was its home: it goes with the workspace."""
    await lane.start_container(lane.away)
    await _delete(lane)


async def _delete_in_error(lane: Lane) -> None:
    """A home that was away for a moment: the delete leaves it as it is, for the purge."""
    lane.home.rename(lane.away)
    await lane.reach(Phase.ERROR)
    lane.away.rename(lane.home)
    await _delete(lane)


async def _undelete(lane: Lane) -> None:
    async with lane.transaction() as conn:
        now = datetime.now(UTC)
        await gate.undelete(conn, lane.workspace_id, actor=OWNER, limits=LIMITS, now=now)


async def _recover(lane: Lane) -> None:
    key = (await lane.get()).archive_key
    assert key is not None
    source = gate.RecoverFrom(RecoverSource.ARCHIVE, archive_op_id_of(key))
    async with lane.transaction() as conn:
        now = datetime.now(UTC)
        await gate.recover(conn, lane.workspace_id, actor=OWNER, limits=LIMITS, source=source, now=now)


async def _wait_for_gc(lane: Lane) -> None:
    """Nobody wishes for a purge; beside the archive there is what a killed restore has left."""
    (lane.directory / ".staging-killed").mkdir(parents=True)
    (lane.directory / ".staging-killed" / "part").write_text("of a home")


SCENARIOS = (
    Scenario(
        "CREATE_EMPTY_ARCHIVE", _created(DesiredState.ARCHIVED), Phase.ARCHIVED, home=NOTHING, archive=EMPTY
    ),
    Scenario("PROVISIONING", _created(DesiredState.STANDBY), Phase.STANDBY, home=EMPTY, archive=NOTHING),
    Scenario(
        "RESTORING",
        _wished(DesiredState.STANDBY),
        Phase.STANDBY,
        home=OLDER,
        archive=OLDER,
        stage="archived",
    ),
    Scenario(
        "STARTING", _wished(DesiredState.RUNNING), Phase.RUNNING, home=NEWER, archive=OLDER, stage="standby"
    ),
    Scenario(
        "STOPPING",
        _wished(DesiredState.STANDBY),
        Phase.STANDBY,
        home=NEWER,
        archive=OLDER,
        stage="standby",
        begin="commit claimed STOPPING",
    ),
    Scenario(
        "ARCHIVING",
        _wished(DesiredState.ARCHIVED),
        Phase.ARCHIVED,
        home=NOTHING,
        archive=NEWER,
        stage="standby",
    ),
    Scenario(
        "DELETING",
        _delete_beside_container,
        Phase.DELETED,
        home=NOTHING,
        archive=OLDER,
        stage="archived",
    ),
    Scenario(
        "delete one in ERROR",
        _delete_in_error,
        Phase.DELETED,
        home=NEWER,
        archive=OLDER,
        stage="standby",
        begin="commit claimed STOPPING",
        in_error=True,
        only="commit .*|send .*",
    ),
    Scenario("delete an ARCHIVED one", _delete, Phase.DELETED, home=NOTHING, archive=OLDER, stage="archived"),
    Scenario(
        "delete a RUNNING one",
        _delete,
        Phase.DELETED,
        home=NOTHING,
        archive=NEWER,
        stage="standby",
        begin="commit claimed STOPPING",
        only=r"commit .*|delete: rename ws/.*",
    ),
    Scenario("undelete", _undelete, Phase.ARCHIVED, home=NOTHING, archive=OLDER, stage="trash"),
    Scenario(
        "recover",
        _recover,
        Phase.STANDBY,
        home=OLDER,
        archive=OLDER,
        stage="lost",
        only=r"commit .*|spawn .*|restore: rename ws/.*",
    ),
    Scenario(
        "purge and GC",
        _wait_for_gc,
        Phase.DELETED,
        home=NOTHING,
        archive=NOTHING,
        stage="trash",
        settings=GC | {"trash_retention_seconds": 0},
        purged=True,
    ),
)


_WITH_THE_STORE = (
    r"take office|commit .*|spawn the job|archive: (spawn|hand|put).*|restore: (mkdir|spawn|rename ws).*"
    r"|(GET|HEAD|POST|PUT|DELETE) .*"
)
ON_S3 = tuple(
    replace(scenario, only=_WITH_THE_STORE)
    for scenario in SCENARIOS
    if scenario.name in ("ARCHIVING", "RESTORING")
)
"""The other steps of these do not depend on where archives are kept."""


async def build_stages(lane: Lane, bulk: int) -> dict[str, str]:
    """Make every stage with a coordinator that nobody has touched.

    Returns the hashes of the two homes; and which of them the archive of that checksum holds.
    """
    await lane.clear()
    lane.start()
    await lane.create(DesiredState.STANDBY)
    await lane.reach(Phase.STANDBY)
    make_tree(lane.home, seed=4, files=8)
    (lane.home / "bulk").write_bytes(random.Random(1).randbytes(bulk))
    hashes = {OLDER: tree_hash(lane.home)}
    await _go_on(lane, _wished(DesiredState.ARCHIVED), Phase.ARCHIVED, "archived")
    await _go_on(lane, _delete, Phase.DELETED, "trash")
    await _go_on(lane, _undelete, Phase.ARCHIVED)
    await _go_on(lane, _wished(DesiredState.STANDBY), Phase.STANDBY)
    assert tree_hash(lane.home) == hashes[OLDER]
    (archive,) = lane.root.glob("archives/*/*/home.tar.zst")
    hashes[hashlib.sha256(archive.read_bytes()).hexdigest()] = OLDER
    (lane.home / "since").write_text("what the archive does not have")
    hashes[NEWER] = tree_hash(lane.home)
    await lane.keep_as("standby")
    lane.home.rename(lane.away)
    await _go_on(lane, None, Phase.ERROR, "lost")
    return hashes


async def _go_on(lane: Lane, wish: Wish | None, phase: Phase, stage: str = "") -> None:
    if wish is not None:
        await wish(lane)
    if lane.coordinator is None:
        lane.start()
    await lane.reach(phase)
    if stage:
        await lane.keep_as(stage)
