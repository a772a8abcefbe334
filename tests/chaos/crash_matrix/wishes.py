"""How each operation comes about: what people wish, and what happens behind everybody's back."""

import json
import os
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import update

from codehub.database import gate
from codehub.database.tables import workspaces
from codehub.domain.archive_keys import archive_op_id_of
from codehub.domain.limits import Limits
from codehub.domain.observation import Generation
from codehub.domain.states import DesiredState, Phase
from codehub.domain.workspace import RecoverSource
from codehub.images_file import offered_images
from codehub.runtimes.base import WorkloadSpec
from codehub.settings import load
from codehub.storage.volumes.workspace_directory import make_private_directory
from tests.chaos.crash_matrix.lane import MUTE, OWNER, Lane
from tests.chaos.crash_matrix.steps import Moment

Wish = Callable[[Lane], Awaitable[None]]

LIMITS = Limits(10, 100)
STRAY = "nobody knows what it is worth"
"""What is in a home that is set aside."""


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
            await gate.set_desired_state(
                conn, lane.workspace_id, desired, actor=OWNER, limits=LIMITS, now=now
            )

    return wish


def cancelled(wish: Wish, moment: Moment) -> Wish:
    """A wish that had come as far as this when its coordinator died, and that its owner then cancelled."""

    async def cancel(lane: Lane) -> None:
        await wish(lane)
        await lane.break_off(moment)
        async with lane.transaction() as conn:
            await gate.cancel(conn, lane.workspace_id, actor=OWNER, now=datetime.now(UTC))

    return cancel


async def start_mute(lane: Lane) -> None:
    async with lane.transaction() as conn:
        await conn.execute(update(workspaces).values(image_ref=MUTE))
    await wished(DesiredState.RUNNING)(lane)


async def delete(lane: Lane) -> None:
    async with lane.transaction() as conn:
        await gate.delete(conn, lane.workspace_id, actor=OWNER, now=datetime.now(UTC))


async def delete_beside_container(lane: Lane) -> None:
    """A container that a late leader has started on what was its home: it goes with the workspace."""
    await _start_container(lane, lane.away)
    socket = lane.root / "runtime" / lane.workspace_id / "io" / "ide.sock"

    async def listens(_: Lane) -> bool:
        return socket.exists()

    await lane.until(listens, "the container to listen")
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
    await _recover(lane, gate.RecoverFrom(RecoverSource.ARCHIVE, archive_op_id_of(key)))


async def recover_empty(lane: Lane) -> None:
    await _recover(lane, gate.RecoverFrom(RecoverSource.EMPTY))


async def _recover(lane: Lane, source: gate.RecoverFrom) -> None:
    async with lane.transaction() as conn:
        now = datetime.now(UTC)
        await gate.recover(conn, lane.workspace_id, actor=OWNER, limits=LIMITS, source=source, now=now)


def beside_stray(wish: Wish, generation: Generation | None) -> Wish:
    """Where the home was lost there is another: of an operation that is not the workspace's, or of none."""

    async def stray(lane: Lane) -> None:
        lane.home.mkdir(parents=True)
        (lane.home / "stray").write_text(STRAY)
        if generation is not None:
            (lane.directory / ".marker").write_text(json.dumps(asdict(generation)))
        await wish(lane)

    return stray


async def wait(_: Lane) -> None:
    """Nobody wishes for what GC does."""


async def wait_for_gc(lane: Lane) -> None:
    """Nobody wishes for a purge; beside the archive there is what a killed restore has left."""
    (lane.directory / ".staging-killed").mkdir(parents=True)
    (lane.directory / ".staging-killed" / "part").write_text("of a home")


async def _start_container(lane: Lane, home: Path) -> None:
    image = offered_images((lane.root / "images.toml").read_text(), "process")["tiny"]
    uid = load().workspace_uid_base + (await lane.get()).number if os.geteuid() == 0 else None
    make_private_directory(home, uid)
    await lane.runtime.start(WorkloadSpec(lane.workspace_id, image, home, "op-0", uid))
