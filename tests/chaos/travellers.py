"""Workspaces that are moved around by seeded wishes, and what must be true of them meanwhile."""

import asyncio
import math
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from codehub.database import gate
from codehub.domain.backends import Backends
from codehub.domain.limits import Limits
from codehub.domain.states import DesiredState
from tests.chaos.coordinators import OWNER, Site, eventually, running_ides
from tests.trees import give_to_its_user, make_tree, tree_hash

LIMITS = Limits(100, 100)
PLACES = (DesiredState.RUNNING, DesiredState.STANDBY, DesiredState.ARCHIVED)


async def create(site: Site, desired: DesiredState, name: str) -> str:
    async with site.engine.begin() as conn:
        made = await gate.create(
            conn, owner_id=OWNER, name=name, description="", image_ref="tiny", standby_ttl=None,
            archive_ttl=None, desired=desired, actor=OWNER, limits=LIMITS, now=datetime.now(UTC),
            backends=Backends("process", "local-dir"),
        )  # fmt: skip
    return made.id


async def settle(site: Site, workspace_id: str, desired: DesiredState) -> None:
    """Wait until the workspace is where it is wanted, at rest; nobody helps it, and ERROR is none."""
    row: dict[str, Any] = {}

    async def settled() -> bool:
        nonlocal row
        query = "SELECT phase, operation, desired_state, error_message FROM workspaces WHERE id = :id"
        (row,) = await site.rows(query, id=workspace_id)
        assert row["phase"] != "ERROR", row
        return (row["phase"], row["operation"], row["desired_state"]) == (desired, "NONE", desired)

    try:
        await eventually(settled, f"{workspace_id} to be {desired}", every=0.1)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{row}\n{site.last_words()}") from error


class Traveller:
    """One workspace, with a home whose every byte is known."""

    def __init__(self, site: Site, workspace_id: str, seed: int) -> None:
        self.id = workspace_id
        self.at = self._wished = DesiredState.STANDBY
        self.moves = 0
        self.goal = math.inf
        self._site = site
        self._random = random.Random(seed)
        self._hash = ""
        home = f"volumes/users/{OWNER}/workspaces/{workspace_id}/home"
        self._home: Path = site.data_dir / home

    @classmethod
    async def begin(cls, site: Site, seed: int) -> "Traveller":
        traveller = cls(site, await create(site, DesiredState.STANDBY, f"traveller {seed}"), seed)
        await settle(site, traveller.id, DesiredState.STANDBY)
        make_tree(traveller._home, seed, files=3)
        give_to_its_user(traveller._home)
        traveller._hash = tree_hash(traveller._home)
        return traveller

    async def journey(self) -> None:
        while self.moves < self.goal:
            await self.move(self._random.choice([place for place in PLACES if place is not self.at]))

    async def arrive(self) -> None:
        """End the move in which a test that failed has left it."""
        if self._wished is not self.at:
            await self.move(self._wished)

    async def move(self, desired: DesiredState) -> None:
        self._wished = desired
        if desired is not self.at:
            await eventually(lambda: self._wish(desired), f"{self.id} to be wished {desired}")
            await settle(self._site, self.id, desired)
        self.at = desired
        self.moves += 1
        self.check_home()
        if desired is DesiredState.STANDBY:
            self._work()

    async def _wish(self, desired: DesiredState) -> bool:
        """A wish whose answer got lost is made again, and is the same wish."""
        async with self._site.engine.begin() as conn:
            await gate.set_desired_state(
                conn, self.id, desired, now=datetime.now(UTC), actor=OWNER, limits=LIMITS
            )
        return True

    def _work(self) -> None:
        """A new version of the home: an archive of an older one would be noticed."""
        (self._home / f"version {self.moves % 3}").write_bytes(self._random.randbytes(1000))
        give_to_its_user(self._home)
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


class Watch:
    """Looks all the time for what may never be, not even between two checks."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._archives: dict[Path, tuple[int, int, int]] = {}

    def look(self) -> None:
        for workspace_id, ides in running_ides().items():
            assert len(ides) == 1, f"{workspace_id} has more than one container: {ides}"
        for meta in self._site.archives_dir.glob("*/*/.meta"):
            archive = meta.with_name("home.tar.zst")
            assert archive.stat().st_mtime_ns <= meta.stat().st_mtime_ns, f"{archive} was written again"
            for file in (meta, archive):
                self._check_unchanged(file)

    def _check_unchanged(self, file: Path) -> None:
        found = file.stat()
        fact = (found.st_ino, found.st_mtime_ns, found.st_size)
        assert self._archives.setdefault(file, fact) == fact, f"{file} was written again"

    def complete_archives(self) -> set[str]:
        """The archive_op_id of each archive that has its `.meta`."""
        return {file.parent.name for file in self._archives}

    async def run(self) -> None:
        while True:
            self.look()
            await asyncio.sleep(0.2)


@asynccontextmanager
async def travelling(travellers: list[Traveller], watch: Watch) -> AsyncIterator[None]:
    """All move until the block ends; then each ends its move, and makes one more."""
    for traveller in travellers:
        traveller.goal = math.inf
    async with asyncio.TaskGroup() as tasks:
        watching = tasks.create_task(watch.run())
        journeys = [tasks.create_task(traveller.journey()) for traveller in travellers]
        yield
        for traveller in travellers:
            traveller.goal = traveller.moves + 2
        await asyncio.gather(*journeys)
        watching.cancel()
