"""How each operation comes about: what people wish, and what happens behind everybody's back."""

import os
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path

from codehub.domain.images import offered_images
from codehub.domain.limits import Limits
from codehub.domain.states import DesiredState, Phase
from codehub.domain.wishes import archive_op_id_of
from codehub.domain.workspace import RecoverSource
from codehub.runtimes.base import WorkloadSpec
from codehub.settings import load
from codehub.storage.layout import make_private_directory
from codehub.store import gate
from tests.chaos.crash_matrix.lane import OWNER, Lane

Wish = Callable[[Lane], Awaitable[None]]

LIMITS = Limits(10, 100)


def created(desired: DesiredState) -> Wish:
    async def create(lane: Lane) -> None:
        async with lane.transaction() as conn:
            made = await gate.create(
                conn,
                owner_id=OWNER,
                name="one",
                description="",
                image_ref="tiny",
                standby_ttl=None,
                archive_ttl=None,
                desired=desired,
                actor=OWNER,
                limits=LIMITS,
                backends=gate.Backends("process", "local-dir"),
                now=datetime.now(UTC),
            )
        lane.workspace_id = made.id

    return create


def wished(desired: DesiredState) -> Wish:
    async def wish(lane: Lane) -> None:
        async with lane.transaction() as conn:
            now = datetime.now(UTC)
            await gate.wish(conn, lane.workspace_id, desired, actor=OWNER, limits=LIMITS, now=now)

    return wish


async def delete(lane: Lane) -> None:
    async with lane.transaction() as conn:
        await gate.delete(conn, lane.workspace_id, actor=OWNER, now=datetime.now(UTC))


async def delete_beside_container(lane: Lane) -> None:
    """A container that a late leader has started on what was its home: it goes with the workspace."""
    await _start_container(lane, lane.away)
    await delete(lane)


async def delete_in_error(lane: Lane) -> None:
    """A home that was away for a moment: the delete leaves it as it is, for the purge."""
    lane.home.rename(lane.away)
    await lane.reach(Phase.ERROR)
    lane.away.rename(lane.home)
    await delete(lane)


async def undelete(lane: Lane) -> None:
    async with lane.transaction() as conn:
        now = datetime.now(UTC)
        await gate.undelete(conn, lane.workspace_id, actor=OWNER, limits=LIMITS, now=now)


async def recover(lane: Lane) -> None:
    """From the latest archive."""
    key = (await lane.get()).archive_key
    assert key is not None
    source = gate.RecoverFrom(RecoverSource.ARCHIVE, archive_op_id_of(key))
    async with lane.transaction() as conn:
        now = datetime.now(UTC)
        await gate.recover(conn, lane.workspace_id, actor=OWNER, limits=LIMITS, source=source, now=now)


async def wait_for_gc(lane: Lane) -> None:
    """Nobody wishes for a purge; beside the archive there is what a killed restore has left."""
    (lane.directory / ".staging-killed").mkdir(parents=True)
    (lane.directory / ".staging-killed" / "part").write_text("of a home")


async def _start_container(lane: Lane, home: Path) -> None:
    image = offered_images((lane.root / "images.toml").read_text(), "process")["tiny"]
    uid = load().workspace_uid_base + (await lane.get()).number if os.geteuid() == 0 else None
    make_private_directory(home, uid)
    await lane.runtime.start(WorkloadSpec(lane.workspace_id, image, home, "op-0", uid))
