"""Actions that start the operations: requests of the owner, and changes behind the coordinator."""

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
from codehub.domain.observation import Generation
from codehub.domain.states import DesiredState, Phase
from codehub.domain.user_limits import Limits
from codehub.domain.workspace import RecoverSource
from codehub.images_file import offered_images
from codehub.runtimes.base import WorkloadSpec
from codehub.settings import load
from codehub.storage.volumes.workspace_directory import make_private_directory
from tests.chaos.crash_matrix.installation import OWNER, UNRESPONSIVE, Installation
from tests.chaos.crash_matrix.steps import CrashPoint

Action = Callable[[Installation], Awaitable[None]]

LIMITS = Limits(10, 100)
STRAY = "content of a stray home"


def create_workspace(desired: DesiredState) -> Action:
    async def create(installation: Installation) -> None:
        async with installation.transaction() as conn:
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
        installation.workspace_id = made.id

    return create


def request_state(desired: DesiredState) -> Action:
    async def action(installation: Installation) -> None:
        async with installation.transaction() as conn:
            now = datetime.now(UTC)
            await gate.set_desired_state(
                conn, installation.workspace_id, desired, actor=OWNER, limits=LIMITS, now=now
            )

    return action


def cancel_at(action: Action, point: CrashPoint) -> Action:
    """Return an action whose operation is cancelled after its coordinator died at a point."""

    async def cancel(installation: Installation) -> None:
        await action(installation)
        await installation.crash_at(point)
        async with installation.transaction() as conn:
            await gate.cancel(conn, installation.workspace_id, actor=OWNER, now=datetime.now(UTC))

    return cancel


async def restore_current_archive(installation: Installation) -> None:
    """Restore the archive that the home was restored from, which discards what has changed since."""
    key = (await installation.get()).archive_key
    assert key is not None
    async with installation.transaction() as conn:
        await gate.restore(
            conn, installation.workspace_id, archive_op_id_of(key), actor=OWNER, now=datetime.now(UTC)
        )


async def start_unresponsive_ide(installation: Installation) -> None:
    async with installation.transaction() as conn:
        await conn.execute(update(workspaces).values(image_ref=UNRESPONSIVE))
    await request_state(DesiredState.RUNNING)(installation)


async def delete(installation: Installation) -> None:
    async with installation.transaction() as conn:
        await gate.delete(conn, installation.workspace_id, actor=OWNER, now=datetime.now(UTC))


async def delete_beside_container(installation: Installation) -> None:
    """Delete a workspace that has a container of a late leader, which must go with it."""
    await _start_container(installation, installation.hidden_home)
    socket = installation.root / "runtime" / installation.workspace_id / "io" / "ide.sock"

    async def listens(_: Installation) -> bool:
        return socket.exists()

    await installation.wait_until(listens, "the container to listen")
    await delete(installation)


async def delete_in_error(installation: Installation) -> None:
    """Delete a workspace in ERROR whose home is back; the delete leaves the home for the purge."""
    installation.home.rename(installation.hidden_home)
    await installation.wait_for_phase(Phase.ERROR)
    installation.hidden_home.rename(installation.home)
    await delete(installation)


async def undelete(installation: Installation) -> None:
    async with installation.transaction() as conn:
        now = datetime.now(UTC)
        await gate.undelete(conn, installation.workspace_id, actor=OWNER, limits=LIMITS, now=now)


async def recover(installation: Installation) -> None:
    """Recover from the latest archive."""
    key = (await installation.get()).archive_key
    assert key is not None
    await _recover(installation, gate.RecoverFrom(RecoverSource.ARCHIVE, archive_op_id_of(key)))


async def recover_empty(installation: Installation) -> None:
    await _recover(installation, gate.RecoverFrom(RecoverSource.EMPTY))


async def _recover(installation: Installation, source: gate.RecoverFrom) -> None:
    async with installation.transaction() as conn:
        now = datetime.now(UTC)
        await gate.recover(
            conn, installation.workspace_id, actor=OWNER, limits=LIMITS, source=source, now=now
        )


def next_to_stray_home(action: Action, generation: Generation | None) -> Action:
    """Return an action beside a home that has a foreign marker, or no marker."""

    async def act(installation: Installation) -> None:
        installation.home.mkdir(parents=True)
        (installation.home / "stray").write_text(STRAY)
        if generation is not None:
            (installation.directory / ".marker").write_text(json.dumps(asdict(generation)))
        await action(installation)

    return act


async def no_action(_: Installation) -> None:
    """Do nothing: GC acts on its own schedule."""


async def leave_staging_leftover(installation: Installation) -> None:
    """Leave the staging directory of a killed restore, for GC."""
    (installation.directory / ".staging-killed").mkdir(parents=True)
    (installation.directory / ".staging-killed" / "part").write_text("of a home")


async def _start_container(installation: Installation, home: Path) -> None:
    image = offered_images((installation.root / "images.toml").read_text(), "process")["tiny"]
    uid = load().workspace_uid_base + (await installation.get()).number if os.geteuid() == 0 else None
    make_private_directory(home, uid)
    await installation.runtime.start(WorkloadSpec(installation.workspace_id, image, home, "op-0", uid))
