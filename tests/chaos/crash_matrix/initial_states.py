"""Initial states of scenarios, made by a coordinator that is not instrumented."""

import hashlib
import random

from codehub.domain.states import DesiredState, Phase
from tests.chaos.crash_matrix.installation import Installation
from tests.chaos.crash_matrix.scenario import NEWER, OLDER
from tests.chaos.crash_matrix.user_actions import Action, create_workspace, delete, request_state, undelete
from tests.trees import chown_to_home_owner, make_tree, tree_hash


async def build_initial_states(installation: Installation, bulk: int) -> dict[str, str]:
    """Save every initial state with a coordinator that is not instrumented.

    Return the tree hashes of OLDER and NEWER, and for the checksum of the archive which home it
    contains.
    """
    await installation.clear()
    installation.start()
    await create_workspace(DesiredState.STANDBY)(installation)
    await installation.wait_for_phase(Phase.STANDBY)
    make_tree(installation.home, seed=4, files=8)
    (installation.home / "bulk").write_bytes(random.Random(1).randbytes(bulk))
    chown_to_home_owner(installation.home)
    hashes = {OLDER: tree_hash(installation.home)}
    await _advance(installation, request_state(DesiredState.ARCHIVED), Phase.ARCHIVED, "archived")
    await _advance(installation, delete, Phase.DELETED, "trash")
    await _advance(installation, undelete, Phase.ARCHIVED)
    await _advance(installation, request_state(DesiredState.STANDBY), Phase.STANDBY)
    assert tree_hash(installation.home) == hashes[OLDER]
    (archive,) = installation.root.glob("archives/*/*/home.tar.zst")
    hashes[hashlib.sha256(archive.read_bytes()).hexdigest()] = OLDER
    (installation.home / "since").write_text("what the archive does not have")
    chown_to_home_owner(installation.home)
    hashes[NEWER] = tree_hash(installation.home)
    await installation.save_state("standby")
    installation.home.rename(installation.hidden_home)
    await _advance(installation, None, Phase.ERROR, "lost")
    await delete(installation)
    installation.hidden_home.rename(installation.home)
    installation.start()
    await installation.wait_until(Installation.has_home, "the restored home")
    await installation.save_state("trash_in_error")
    await installation.clear()
    await installation.load_state("standby")
    await _advance(installation, request_state(DesiredState.ARCHIVED), Phase.ARCHIVED, "replaced")
    return hashes


async def _advance(
    installation: Installation, action: Action | None, phase: Phase, save_as: str = ""
) -> None:
    if action is not None:
        await action(installation)
    if installation.coordinator is None:
        installation.start()
    await installation.wait_for_phase(phase)
    if save_as:
        await installation.save_state(save_as)
