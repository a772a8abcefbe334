"""Restores of a chosen archive with a real coordinator, real jobs and real homes (ADR 0038)."""

import shutil
from datetime import UTC, datetime
from pathlib import Path

from codehub.database import gate, workspace_queries
from codehub.domain.archive_keys import archive_op_id_of, meta_key
from codehub.domain.states import DesiredState, Operation, Phase
from codehub.domain.workspace import Workspace
from tests.integration.coordinator.conftest import CoordinatorStack
from tests.trees import chown_to_home_owner, make_tree, tree_hash


async def restore(stack: CoordinatorStack, workspace_id: str, archive_key: str | None) -> Workspace:
    """Request a restore, and return the workspace once it is carried out or dropped."""
    assert archive_key is not None
    async with stack.engine.begin() as conn:
        op_id = archive_op_id_of(archive_key)
        await gate.restore(conn, workspace_id, op_id, actor="u1", now=datetime.now(UTC))
    return await stack.until(
        workspace_id,
        lambda w: w.request is None and w.operation is Operation.NONE and w.phase.value == w.desired_state,
    )


async def older_and_newer(stack: CoordinatorStack) -> tuple[str, str | None, str, str]:
    """Return a workspace in STANDBY, the key of an older archive, and the hashes of both homes."""
    await stack.start()
    workspace_id = await stack.create(DesiredState.STANDBY)
    await stack.until_phase(workspace_id, Phase.STANDBY)
    home = await stack.home(workspace_id)
    make_tree(home, seed=1)
    chown_to_home_owner(home)
    older = tree_hash(home)
    key = (await stack.reach(workspace_id, DesiredState.ARCHIVED)).archive_key
    await stack.reach(workspace_id, DesiredState.STANDBY)
    make_newer(home)
    return workspace_id, key, older, tree_hash(home)


def make_newer(home: Path) -> None:
    for entry in home.iterdir():
        shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
    make_tree(home, seed=2)
    chown_to_home_owner(home)


async def archives_of(stack: CoordinatorStack, workspace: Workspace) -> dict[str, bool]:
    async with stack.engine.connect() as conn:
        found = await workspace_queries.archives_of(conn, workspace)
    return {archive.archive_op_id: archive.current for archive in found}


async def test_an_older_archive_comes_back_and_the_newer_home_is_among_the_archives(
    stack: CoordinatorStack,
) -> None:
    workspace_id, older_key, older, newer = await older_and_newer(stack)
    home = await stack.home(workspace_id)

    restored = await restore(stack, workspace_id, older_key)
    assert (restored.phase, restored.archive_key) == (Phase.STANDBY, older_key)
    assert tree_hash(home) == older
    listed = await archives_of(stack, restored)
    assert list(listed.values()) == [False, True], "newest first; the older one is current"

    [newer_op_id] = [op_id for op_id, current in listed.items() if not current]
    back = await restore(stack, workspace_id, f"{workspace_id}/{newer_op_id}/home.tar.zst")
    assert tree_hash(home) == newer
    assert back.archive_op_id is not None
    assert len(await archives_of(stack, back)) == 3, "the home that was restored first is an archive too"


async def test_an_older_archive_is_restored_from_archived(stack: CoordinatorStack) -> None:
    workspace_id, older_key, older, _ = await older_and_newer(stack)
    archived = await stack.reach(workspace_id, DesiredState.ARCHIVED)
    restored = await restore(stack, workspace_id, older_key)
    assert restored.desired_state is DesiredState.STANDBY
    assert tree_hash(await stack.home(workspace_id)) == older
    assert archive_op_id_of(archived.archive_key or "") in await archives_of(stack, restored)
    assert f"The home before it is kept as {archived.archive_key}." in "".join(
        await stack.timeline(workspace_id)
    )


async def test_a_chosen_archive_that_is_gone_leaves_the_home_as_it_is(stack: CoordinatorStack) -> None:
    workspace_id, older_key, _, newer = await older_and_newer(stack)
    assert older_key is not None
    await stack.providers.archives.remove(older_key)
    kept = await restore(stack, workspace_id, older_key)
    assert kept.phase is Phase.STANDBY
    assert "no longer in the store" in (kept.error_message or "")
    assert tree_hash(await stack.home(workspace_id)) == newer


async def test_a_chosen_archive_that_is_damaged_leaves_the_home_as_it_is(stack: CoordinatorStack) -> None:
    workspace_id, older_key, _, newer = await older_and_newer(stack)
    assert older_key is not None
    (stack.settings.data_dir / "archives" / meta_key(older_key)).write_bytes(b"damaged")
    kept = await restore(stack, workspace_id, older_key)
    assert kept.phase is Phase.STANDBY
    assert "or damaged" in (kept.error_message or "")
    assert tree_hash(await stack.home(workspace_id)) == newer
