"""Workspaces that move between states at random, and a monitor of what must always hold."""

import asyncio
import math
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from codehub.database import gate
from codehub.domain.other_backends import Backends
from codehub.domain.states import DesiredState
from codehub.domain.user_limits import Limits
from tests.chaos.coordinators import OWNER, CoordinatorInstallation, eventually, running_ides
from tests.trees import chown_to_home_owner, make_tree, tree_hash

LIMITS = Limits(100, 100)
STATES = (DesiredState.RUNNING, DesiredState.STANDBY, DesiredState.ARCHIVED)


async def create(installation: CoordinatorInstallation, desired: DesiredState, name: str) -> str:
    async with installation.engine.begin() as conn:
        made = await gate.create(
            conn, owner_id=OWNER, name=name, description="", image_ref="tiny", standby_ttl=None,
            archive_ttl=None, desired=desired, actor=OWNER, limits=LIMITS, now=datetime.now(UTC),
            backends=Backends("process", "local-dir"),
        )  # fmt: skip
    return made.id


async def settle(installation: CoordinatorInstallation, workspace_id: str, desired: DesiredState) -> None:
    """Wait until the workspace is at rest in the desired state; fail on ERROR."""
    row: dict[str, Any] = {}

    async def settled() -> bool:
        nonlocal row
        query = "SELECT phase, operation, desired_state, error_message FROM workspaces WHERE id = :id"
        (row,) = await installation.rows(query, id=workspace_id)
        assert row["phase"] != "ERROR", row
        return (row["phase"], row["operation"], row["desired_state"]) == (desired, "NONE", desired)

    try:
        await eventually(settled, f"{workspace_id} to be {desired}", every=0.1)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{row}\n{installation.log_tails()}") from error


class MovingWorkspace:
    """Workspace that moves between states, with a home whose hash is known."""

    def __init__(self, installation: CoordinatorInstallation, workspace_id: str, seed: int) -> None:
        self.id = workspace_id
        self.at = self._desired_state = DesiredState.STANDBY
        self.moves = 0
        self.goal = math.inf
        self._installation = installation
        self._random = random.Random(seed)
        self._hash = ""
        home = f"volumes/users/{OWNER}/workspaces/{workspace_id}/home"
        self._home: Path = installation.data_dir / home

    @classmethod
    async def begin(cls, installation: CoordinatorInstallation, seed: int) -> "MovingWorkspace":
        workspace = cls(
            installation, await create(installation, DesiredState.STANDBY, f"workspace {seed}"), seed
        )
        await settle(installation, workspace.id, DesiredState.STANDBY)
        make_tree(workspace._home, seed, files=3)
        chown_to_home_owner(workspace._home)
        workspace._hash = tree_hash(workspace._home)
        return workspace

    async def move_randomly(self) -> None:
        while self.moves < self.goal:
            await self.move(self._random.choice([state for state in STATES if state is not self.at]))

    async def finish_move(self) -> None:
        """Finish the move that a failed test has left under way."""
        if self._desired_state is not self.at:
            await self.move(self._desired_state)

    async def move(self, desired: DesiredState) -> None:
        self._desired_state = desired
        if desired is not self.at:
            await eventually(
                lambda: self._set_desired_state(desired), f"desired_state of {self.id} to be {desired}"
            )
            await settle(self._installation, self.id, desired)
        self.at = desired
        self.moves += 1
        self.check_home()
        if desired is DesiredState.STANDBY:
            self._work()

    async def _set_desired_state(self, desired: DesiredState) -> bool:
        """Request the state. A retry after a lost answer changes nothing."""
        async with self._installation.engine.begin() as conn:
            await gate.set_desired_state(
                conn, self.id, desired, now=datetime.now(UTC), actor=OWNER, limits=LIMITS
            )
        return True

    def _work(self) -> None:
        """Change the home, so that a restore of an older archive would be noticed."""
        (self._home / f"version {self.moves % 3}").write_bytes(self._random.randbytes(1000))
        chown_to_home_owner(self._home)
        self._hash = tree_hash(self._home)

    def check_home(self) -> None:
        if self.at is DesiredState.ARCHIVED:
            assert not self._home.exists(), f"{self.id} is archived and has a home"
        else:
            assert tree_hash(self._home) == self._hash, f"the home of {self.id} is not what it was"

    def check_container(self) -> None:
        expected = 1 if self.at is DesiredState.RUNNING else 0
        ides = running_ides().get(self.id, [])
        assert len(ides) == expected, f"{self.id} is {self.at}, and its containers are {ides}"


class InvariantMonitor:
    """Monitor of invariants: one container a workspace, and immutable archives."""

    def __init__(self, installation: CoordinatorInstallation) -> None:
        self._installation = installation
        self._archives: dict[Path, tuple[int, int, int]] = {}

    def check(self) -> None:
        for workspace_id, ides in running_ides().items():
            assert len(ides) == 1, f"{workspace_id} has more than one container: {ides}"
        for meta in self._installation.archives_dir.glob("*/*/.meta"):
            archive = meta.with_name("home.tar.zst")
            assert archive.stat().st_mtime_ns <= meta.stat().st_mtime_ns, f"{archive} was written again"
            for file in (meta, archive):
                self._check_unchanged(file)

    def _check_unchanged(self, file: Path) -> None:
        found = file.stat()
        fact = (found.st_ino, found.st_mtime_ns, found.st_size)
        assert self._archives.setdefault(file, fact) == fact, f"{file} was written again"

    def complete_archives(self) -> set[str]:
        """Return the archive_op_id of each archive that has its `.meta`."""
        return {file.parent.name for file in self._archives}

    async def run(self) -> None:
        while True:
            self.check()
            await asyncio.sleep(0.2)


@asynccontextmanager
async def keep_moving(
    moving_workspaces: list[MovingWorkspace], monitor: InvariantMonitor
) -> AsyncIterator[None]:
    """Move every workspace until the block ends; then each finishes its move and makes one more."""
    for workspace in moving_workspaces:
        workspace.goal = math.inf
    async with asyncio.TaskGroup() as tasks:
        watching = tasks.create_task(monitor.run())
        movements = [tasks.create_task(workspace.move_randomly()) for workspace in moving_workspaces]
        yield
        for workspace in moving_workspaces:
            workspace.goal = workspace.moves + 2
        await asyncio.gather(*movements)
        watching.cancel()
