"""One cell of the matrix: an operation in which someone dies at one step, and what must hold afterwards."""

import asyncio
import hashlib
import subprocess
import time
from dataclasses import dataclass, replace
from pathlib import Path

from sqlalchemy import text

from codehub.domain.states import DesiredState, Phase
from tests.chaos.crash_matrix.lane import GC, Lane, Stuck
from tests.chaos.crash_matrix.scenarios import EMPTY, NOTHING, Scenario
from tests.chaos.crash_matrix.steps import COORDINATOR, JOB, REQUEST, Moment, Orders
from tests.chaos.crash_matrix.wishes import wished
from tests.trees import IN_UTF_8, tree_hash

DIES_WITHIN = 3.0
"""Seconds after the end of an operation in which a last step may come."""
TIDY_WITHIN = 1.0
QUIET = 0.2
QUIET_WITHIN = 5
BESIDE_HOME = {".lock", ".fence", ".marker", "home"}


@dataclass(frozen=True)
class Death:
    """Who dies, and when."""

    moment: Moment
    victims: tuple[str, ...]


@dataclass(frozen=True)
class Outcome:
    ok: bool
    words: str
    seconds: float


class NotReached(Exception):  # noqa: N818 - a fact, not a fault
    """The operation was over, and the step had not come."""


async def record(lane: Lane, scenario: Scenario) -> list[Moment]:
    """Play it without a death: every moment in which there could have been one, in order."""
    await _begin(lane, scenario, None)
    await lane.until(scenario.is_reached, str(scenario.phase))
    await _tidy(lane, scenario)
    return await _quiet(lane)


async def _quiet(lane: Lane) -> list[Moment]:
    """What is in the diary once nothing more comes: an end is seen before it is told. GC is never quiet."""
    for _ in range(QUIET_WITHIN):
        told = lane.told()
        await asyncio.sleep(QUIET)
        if told == lane.told():
            break
    return told


async def play(lane: Lane, scenario: Scenario, death: Death, hashes: dict[str, str]) -> Outcome:
    begun = time.monotonic()
    try:
        await _begin(lane, scenario, death)
        await _fall(lane, scenario, death)
        fallen = time.monotonic()
        if COORDINATOR in death.victims:
            await lane.stop()
            lane.start(**scenario.settings)
        await lane.until(scenario.is_reached, str(scenario.phase))
        seconds = time.monotonic() - fallen
        by_gc = await _tidy(lane, scenario)
        retries = await _check(lane, scenario, hashes)
    except NotReached:
        return Outcome(True, "not reached", time.monotonic() - begun)
    except AssertionError as error:
        return Outcome(False, f"{error}\n{await lane.story()}", time.monotonic() - begun)
    words = ["ok", *(["1 retry"] if retries else []), *(["GC"] if by_gc else [])]
    return Outcome(True, ", ".join(words), seconds)


async def _begin(lane: Lane, scenario: Scenario, death: Death | None) -> None:
    await lane.clear()
    if scenario.stage:
        await lane.set(scenario.stage)
    orders = {who: _orders(lane, scenario, who, death) for who in (COORDINATOR, JOB, REQUEST)}
    if scenario.begin:
        await wished(DesiredState.RUNNING)(lane)
        lane.start(orders, **scenario.settings)
        await lane.reach(Phase.RUNNING)
        await scenario.wish(lane)
    else:
        await scenario.wish(lane)
        lane.start(orders, **scenario.settings)


def _orders(lane: Lane, scenario: Scenario, who: str, death: Death | None) -> Orders:
    begin = scenario.begin if who == COORDINATOR else ""
    orders = Orders(who, str(lane.root), str(lane.diary), begin)
    if death is None or death.moment.of != who:
        return orders
    return replace(orders, step=death.moment.step, side=death.moment.side, victims=death.victims)


async def _fall(lane: Lane, scenario: Scenario, death: Death) -> None:
    """Until the step has come; or the operation is over, and some time besides."""
    assert lane.coordinator is not None

    async def fallen_or_over(_: Lane) -> bool:
        return lane.has_fallen or not lane.coordinator.alive or await scenario.is_reached(lane)

    await lane.until(fallen_or_over, f"{death.moment.step}")
    deadline = time.monotonic() + DIES_WITHIN
    while not lane.has_fallen:
        assert lane.coordinator.alive, "the coordinator has ended by itself"
        if time.monotonic() > deadline:
            raise NotReached
        await asyncio.sleep(0.03)
    if COORDINATOR in death.victims:
        assert await lane.coordinator.ends(10), "the coordinator lives on"


async def _tidy(lane: Lane, scenario: Scenario) -> bool:
    """Nothing lies about that nobody needs. True when it took a GC to remove it."""

    async def is_tidy(_: Lane) -> bool:
        return not await asyncio.to_thread(litter, lane)

    try:
        await lane.until(is_tidy, "tidiness", TIDY_WITHIN)
        return False
    except Stuck:
        await lane.stop()
        lane.start(**{**GC, **scenario.settings})
    try:
        await lane.until(is_tidy, "a GC to remove what nobody needs")
    except Stuck as error:
        raise Stuck(f"{error}: {litter(lane)}") from error
    return True


def litter(lane: Lane) -> list[str]:
    """What lies on the disks and is neither the workspace's nor to be expected beside it."""
    beside = {path.name for path in lane.directory.glob("*") if path.suffix != ".tmp"} - BESIDE_HOME
    jobs = {f"jobs/{path.name}" for path in (lane.root / "jobs").glob("*")}
    runtime = {f"runtime/{path.name}" for path in (lane.root / "runtime").glob(".*")}
    stored = lane.store.names()
    archives = {name.rpartition("/")[0] for name in stored}
    whole = {f"{archive}/{part}" for archive in archives for part in ("home.tar.zst", ".meta")}
    return sorted(beside | jobs | runtime | {f"archives/{name}" for name in stored ^ whole})


async def _check(lane: Lane, scenario: Scenario, hashes: dict[str, str]) -> int:
    """Everything that must hold at the end; how often something was tried again."""
    workspace = await lane.get()
    assert scenario.in_error or workspace.error_reason is None, f"an error is left: {workspace}"
    assert scenario.in_error or workspace.error_count == 0, f"errors are counted: {workspace}"
    assert workspace.op_id is None and workspace.next_retry_at is None
    await asyncio.to_thread(_check_home, lane, scenario, hashes)
    if scenario.archive == NOTHING:
        assert scenario.purged or workspace.archive_key is None
        assert not lane.store.names(), f"the store holds {lane.store.names()}"
    else:
        assert workspace.archive_key is not None
        await _check_archive(lane, workspace.archive_key, scenario, hashes)
    running = await lane.runtime.observe()
    assert [fact.ready for fact in running.values()] == [True] * (scenario.phase is Phase.RUNNING), running
    failed, ended = await _count(lane, "failed"), await _count(lane, "error", "lost", "died")
    assert failed <= 1, "it was tried more than once again"
    assert ended == scenario.in_error, "something was taken for lost"
    return failed


async def _count(lane: Lane, *events: str) -> int:
    async with lane.transaction() as conn:
        query = text("SELECT count(*) FROM timeline WHERE event = ANY(:events)")
        return int(await conn.scalar(query, {"events": list(events)}) or 0)


def _check_home(lane: Lane, scenario: Scenario, hashes: dict[str, str]) -> None:
    homes = list(lane.root.glob("volumes/users/*/workspaces/*/home"))
    if scenario.home == NOTHING:
        # A marker may outlive its home: without one it marks nothing, and the next home brings its own.
        assert not homes, f"there is a home: {homes}"
        return
    assert homes == [lane.home] and (lane.directory / ".marker").exists(), f"not one home: {homes}"
    _check_tree(lane.home, scenario.home, hashes)


def _check_tree(tree: Path, holds: str, hashes: dict[str, str]) -> None:
    if holds == EMPTY:
        assert not list(tree.iterdir()) and tree.stat().st_mode & 0o777 == 0o700
    else:
        assert tree_hash(tree) == hashes[holds], f"the tree is not the {holds} one"


async def _check_archive(lane: Lane, key: str, scenario: Scenario, hashes: dict[str, str]) -> None:
    content, meta = lane.store.read(key), lane.store.read(key.replace("home.tar.zst", ".meta")).decode()
    sha256 = await asyncio.to_thread(lambda: hashlib.sha256(content).hexdigest())
    assert meta.startswith(f"sha256:{sha256}\nbytes={len(content)} "), f"the .meta lies: {meta}"
    async with lane.transaction() as conn:
        query = text("SELECT sha256 FROM archives WHERE archive_key = :key AND removed_at IS NULL")
        assert await conn.scalar(query, {"key": key}) == sha256, "the row names another checksum"
    if hashes.get(sha256) != scenario.archive:
        await asyncio.to_thread(_check_content, lane.root / "unpacked", content, scenario.archive, hashes)


def _check_content(place: Path, content: bytes, holds: str, hashes: dict[str, str]) -> None:
    """With the tools that its owner would use."""
    subprocess.run(["rm", "-rf", place], check=True)
    place.mkdir()
    plain = subprocess.run(["zstd", "-dc"], input=content, stdout=subprocess.PIPE, check=True).stdout
    options = ["--numeric-owner", "-p", "--xattrs", "--xattrs-include=*", "--warning=no-timestamp"]
    subprocess.run(["tar", "-x", *options, "-C", place], input=plain, env=IN_UTF_8, check=True)
    _check_tree(place, holds, hashes)
