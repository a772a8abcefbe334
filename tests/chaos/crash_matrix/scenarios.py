"""What is played: every operation, from where it begins, by which wish, to which end."""

import hashlib
import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from codehub.domain.states import DesiredState, Phase
from tests.chaos.crash_matrix.lane import GC, PURGED, Lane
from tests.chaos.crash_matrix.wishes import (
    Wish,
    created,
    delete,
    delete_beside_container,
    delete_in_error,
    recover,
    undelete,
    wait_for_gc,
    wished,
)
from tests.trees import make_tree, tree_hash

NOTHING, EMPTY, OLDER, NEWER = "nothing", "empty", "older", "newer"
"""What a home or an archive may hold: the homes of the stages are two, one made from the other."""


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


SCENARIOS = (
    Scenario(
        "CREATE_EMPTY_ARCHIVE", created(DesiredState.ARCHIVED), Phase.ARCHIVED, home=NOTHING, archive=EMPTY
    ),
    Scenario("PROVISIONING", created(DesiredState.STANDBY), Phase.STANDBY, home=EMPTY, archive=NOTHING),
    Scenario(
        "RESTORING",
        wished(DesiredState.STANDBY),
        Phase.STANDBY,
        home=OLDER,
        archive=OLDER,
        stage="archived",
    ),
    Scenario(
        "STARTING", wished(DesiredState.RUNNING), Phase.RUNNING, home=NEWER, archive=OLDER, stage="standby"
    ),
    Scenario(
        "STOPPING",
        wished(DesiredState.STANDBY),
        Phase.STANDBY,
        home=NEWER,
        archive=OLDER,
        stage="standby",
        begin="commit claimed STOPPING",
    ),
    Scenario(
        "ARCHIVING",
        wished(DesiredState.ARCHIVED),
        Phase.ARCHIVED,
        home=NOTHING,
        archive=NEWER,
        stage="standby",
    ),
    Scenario(
        "DELETING",
        delete_beside_container,
        Phase.DELETED,
        home=NOTHING,
        archive=OLDER,
        stage="archived",
    ),
    Scenario(
        "delete one in ERROR",
        delete_in_error,
        Phase.DELETED,
        home=NEWER,
        archive=OLDER,
        stage="standby",
        begin="commit claimed STOPPING",
        in_error=True,
        only="commit .*|send .*",
    ),
    Scenario("delete an ARCHIVED one", delete, Phase.DELETED, home=NOTHING, archive=OLDER, stage="archived"),
    Scenario(
        "delete a RUNNING one",
        delete,
        Phase.DELETED,
        home=NOTHING,
        archive=NEWER,
        stage="standby",
        begin="commit claimed STOPPING",
        only=r"commit .*|delete: rename ws/.*",
    ),
    Scenario("undelete", undelete, Phase.ARCHIVED, home=NOTHING, archive=OLDER, stage="trash"),
    Scenario(
        "recover",
        recover,
        Phase.STANDBY,
        home=OLDER,
        archive=OLDER,
        stage="lost",
        only=r"commit .*|spawn .*|restore: rename ws/.*",
    ),
    Scenario(
        "purge and GC",
        wait_for_gc,
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
    await created(DesiredState.STANDBY)(lane)
    await lane.reach(Phase.STANDBY)
    make_tree(lane.home, seed=4, files=8)
    (lane.home / "bulk").write_bytes(random.Random(1).randbytes(bulk))
    hashes = {OLDER: tree_hash(lane.home)}
    await _go_on(lane, wished(DesiredState.ARCHIVED), Phase.ARCHIVED, "archived")
    await _go_on(lane, delete, Phase.DELETED, "trash")
    await _go_on(lane, undelete, Phase.ARCHIVED)
    await _go_on(lane, wished(DesiredState.STANDBY), Phase.STANDBY)
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
