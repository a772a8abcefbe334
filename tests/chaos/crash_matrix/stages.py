"""The stages that scenarios begin from, made by a coordinator that nobody has touched."""

import hashlib
import random

from codehub.domain.states import DesiredState, Phase
from tests.chaos.crash_matrix.lane import Lane
from tests.chaos.crash_matrix.scenario import NEWER, OLDER
from tests.chaos.crash_matrix.wishes import Wish, created, delete, undelete, wished
from tests.trees import give_to_its_user, make_tree, tree_hash


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
    give_to_its_user(lane.home)
    hashes = {OLDER: tree_hash(lane.home)}
    await _go_on(lane, wished(DesiredState.ARCHIVED), Phase.ARCHIVED, "archived")
    await _go_on(lane, delete, Phase.DELETED, "trash")
    await _go_on(lane, undelete, Phase.ARCHIVED)
    await _go_on(lane, wished(DesiredState.STANDBY), Phase.STANDBY)
    assert tree_hash(lane.home) == hashes[OLDER]
    (archive,) = lane.root.glob("archives/*/*/home.tar.zst")
    hashes[hashlib.sha256(archive.read_bytes()).hexdigest()] = OLDER
    (lane.home / "since").write_text("what the archive does not have")
    give_to_its_user(lane.home)
    hashes[NEWER] = tree_hash(lane.home)
    await lane.keep_as("standby")
    lane.home.rename(lane.away)
    await _go_on(lane, None, Phase.ERROR, "lost")
    await delete(lane)
    lane.away.rename(lane.home)
    lane.start()
    await lane.until(Lane.has_home, "the home that is back")
    await lane.keep_as("trash_in_error")
    await lane.clear()
    await lane.set("standby")
    await _go_on(lane, wished(DesiredState.ARCHIVED), Phase.ARCHIVED, "replaced")
    return hashes


async def _go_on(lane: Lane, wish: Wish | None, phase: Phase, stage: str = "") -> None:
    if wish is not None:
        await wish(lane)
    if lane.coordinator is None:
        lane.start()
    await lane.reach(phase)
    if stage:
        await lane.keep_as(stage)
