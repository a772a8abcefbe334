"""One cell of the matrix: an operation in which someone dies at one step, and what must hold afterwards."""

import asyncio
import hashlib
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import text

from codehub.domain.states import DesiredState, Phase
from codehub.domain.volume_leftovers import ASIDE
from codehub.domain.workspace import Workspace
from tests.chaos.crash_matrix.lane import GC, SEEN_BY_GC, Lane, Stuck
from tests.chaos.crash_matrix.scenario import EMPTY, NOTHING, PARTS, Scenario
from tests.chaos.crash_matrix.steps import AFTER, COORDINATOR, JOB, Moment
from tests.chaos.crash_matrix.wishes import STRAY, wished
from tests.trees import IN_UTF_8, tree_hash

WITHOUT_GC = 1.0
"""Seconds for the coordinator to tidy up before a GC does. Neither of them fails a cell."""
QUIET = 0.2
QUIET_WITHIN = 5
"""Seconds, and how often: a diary that has not grown is taken as complete. A later step fails no cell."""
BESIDE_HOME = {".lock", ".fence", ".marker", "home"}
NOT_REACHED = "not reached"


@dataclass(frozen=True)
class Death:
    """Who dies, and when."""

    moment: Moment
    victims: tuple[str, ...]

    @property
    def leaves_job(self) -> bool:
        """Whether the job lives on, without its coordinator."""
        return self.moment.of == JOB and JOB not in self.victims


@dataclass(frozen=True)
class Outcome:
    ok: bool
    words: str
    seconds: float


class NotReached(Exception):  # noqa: N818 - a fact, not a fault
    """The operation ended without the step, as it may where the step depends on time."""


async def record(lane: Lane, scenario: Scenario) -> list[Moment]:
    """Play it without a death: every moment in which there could have been one, in order."""
    await _begin(lane, scenario, None)
    await lane.until(scenario.is_reached, str(scenario.phase))

    async def is_told(_: Lane) -> bool:
        """An end is seen before it is told."""
        return scenario.must <= {moment.step for moment in lane.told() if moment.side == AFTER}

    await lane.until(is_told, f"all of {sorted(scenario.must)} to be done")
    await _tidy(lane, scenario)
    return await _quiet(lane)


async def _quiet(lane: Lane) -> list[Moment]:
    """What is in the diary once nothing more comes. GC is never quiet."""
    for _ in range(QUIET_WITHIN):
        told = lane.told()
        await asyncio.sleep(QUIET)
        if told == lane.told():
            break
    return told


async def play(
    lane: Lane, scenario: Scenario, death: Death, hashes: dict[str, str], *, may_pass: bool = False
) -> Outcome:
    """Play one death. A step that `may_pass` depends on time: the operation may end without it."""
    begun = time.monotonic()
    try:
        await _begin(lane, scenario, death)
        await _fall(lane, scenario, death, may_pass=may_pass)
        fallen = time.monotonic()
        if COORDINATOR in death.victims:
            await lane.stop()
            lane.start(**scenario.settings)
        await lane.until(scenario.is_reached, str(scenario.phase))
        seconds = time.monotonic() - fallen
        by_gc = await _tidy(lane, scenario)
        if scenario.aside:
            await _let_gc_see(lane, ASIDE)
        retries = await _check(lane, scenario, hashes)
        _check_job(lane, death, retries)
    except NotReached:
        return Outcome(True, NOT_REACHED, time.monotonic() - begun)
    except AssertionError as error:
        return Outcome(False, f"{error}\n{await lane.story()}", time.monotonic() - begun)
    words = ["ok", *(["1 retry"] if retries else []), *(["GC"] if by_gc else [])]
    return Outcome(True, ", ".join(words), seconds)


async def _begin(lane: Lane, scenario: Scenario, death: Death | None) -> None:
    await lane.clear()
    lane.ends_in_error = scenario.phase is Phase.ERROR
    if scenario.stage:
        await lane.set(scenario.stage)
    dies = (death.moment, death.victims) if death is not None else ()
    orders = lane.orders(*dies, begin=scenario.begin)
    if scenario.begin:
        await wished(DesiredState.RUNNING)(lane)
        lane.start(orders, **scenario.settings)
        await lane.reach(Phase.RUNNING)
        await scenario.wish(lane)
    else:
        await scenario.wish(lane)
        lane.start(orders, **scenario.settings)


async def _fall(lane: Lane, scenario: Scenario, death: Death, *, may_pass: bool) -> None:
    """Wait until the step has come and whoever dies there is dead."""
    coordinator = lane.coordinator
    assert coordinator is not None

    async def fallen(_: Lane) -> bool:
        # Read first: a coordinator that falls in between has told so before it died.
        alive = coordinator.alive
        assert lane.has_fallen or alive, "the coordinator has ended by itself"
        return lane.has_fallen

    async def fallen_or_over(_: Lane) -> bool:
        return await fallen(lane) or await scenario.is_reached(lane)

    if may_pass:
        await lane.until(fallen_or_over, death.moment.step)
        if not lane.has_fallen:
            await _quiet(lane)
        if not await fallen(lane):
            raise NotReached
    await lane.until(fallen, death.moment.step)
    if COORDINATOR in death.victims:
        assert await coordinator.ends(), "the coordinator lives on"


async def _tidy(lane: Lane, scenario: Scenario) -> bool:
    """Wait until nothing is left that nobody needs. True when it took a GC to remove it."""
    spared = (await lane.get()).archive_op_id if scenario.cancelled else None

    async def is_tidy(_: Lane) -> bool:
        return not await asyncio.to_thread(litter, lane, spared)

    deadline = time.monotonic() + WITHOUT_GC
    while time.monotonic() < deadline:
        if await is_tidy(lane):
            return False
        await asyncio.sleep(0.03)
    await lane.stop()
    lane.start(**{**GC, **scenario.settings})
    try:
        await lane.until(is_tidy, "a GC to remove what nobody needs")
    except Stuck as error:
        raise Stuck(f"{error}: {litter(lane, spared)}") from error
    return True


async def _let_gc_see(lane: Lane, name: str) -> None:
    """What is to be kept must be so by a GC that has looked at it."""
    await lane.stop()
    lane.start(**GC)
    await lane.until(lambda _: lane.ask(SEEN_BY_GC, f"%/{name}%"), f"a GC to see {name}")


def litter(lane: Lane, spared: str | None = None) -> list[str]:
    """What lies on the disks and is neither the workspace's nor to be expected beside it.

    What a cancelled archive has stored is spared: GC keeps it until there is another archive.
    """
    found = {path.name for path in lane.directory.glob("*") if path.suffix != ".tmp"}
    beside = {name for name in found - BESIDE_HOME if not name.startswith(ASIDE)}
    jobs = {f"jobs/{path.name}" for path in (lane.root / "jobs").glob("*")}
    runtime = {f"runtime/{path.name}" for path in (lane.root / "runtime").glob(".*")}
    stored = {name for name in lane.store.names() if name.split("/")[1] != spared}
    archives = {name.rpartition("/")[0] for name in stored}
    whole = {f"{archive}/{part}" for archive in archives for part in PARTS}
    return sorted(beside | jobs | runtime | {f"archives/{name}" for name in stored ^ whole})


async def _check(lane: Lane, scenario: Scenario, hashes: dict[str, str]) -> int:
    """Everything that must hold at the end; how often something was tried again."""
    workspace = await lane.get()
    assert scenario.in_error or workspace.error_reason is None, f"an error is left: {workspace}"
    assert scenario.in_error or workspace.error_count == 0, f"errors are counted: {workspace}"
    assert workspace.op_id is None and workspace.next_retry_at is None
    wished_for = (scenario.desired or scenario.phase).value
    assert workspace.desired_state.value == wished_for, f"wished is {workspace.desired_state}"
    assert await _count(lane, "cancelled") == scenario.cancelled, "the cancel took no effect"
    await asyncio.to_thread(_check_home, lane, scenario, hashes)
    await _check_archives(lane, workspace, scenario, hashes)

    async def runs_as_it_should(_: Lane) -> bool:
        """Asked again: an IDE that is kept waiting is too late for one look."""
        running = (await lane.runtime.observe()).values()
        return [fact.ready for fact in running] == [True] * (scenario.phase is Phase.RUNNING)

    await lane.until(runs_as_it_should, "the containers that there should be")
    failed, ended = await _count(lane, "failed"), await _count(lane, "error", "lost", "died")
    assert failed <= 1, "it was tried more than once again"
    assert ended == scenario.losses, "something was taken for lost"
    return failed


def _check_job(lane: Lane, death: Death, retries: int) -> None:
    """Jobs survive their coordinator and are adopted, and its death is nobody's failure."""
    assert JOB in death.victims or retries == 0, "a failure was counted, and no job had died"
    assert not (death.leaves_job and lane.begun_twice()), f"started again: {lane.begun_twice()}"


async def _count(lane: Lane, *events: str) -> int:
    async with lane.transaction() as conn:
        query = text("SELECT count(*) FROM timeline WHERE event = ANY(:events)")
        return int(await conn.scalar(query, {"events": list(events)}) or 0)


async def _check_archives(
    lane: Lane, workspace: Workspace, scenario: Scenario, hashes: dict[str, str]
) -> None:
    if scenario.archive == NOTHING:
        assert scenario.purged or workspace.archive_key is None
    else:
        assert workspace.archive_key is not None
        await _check_archive(lane, workspace.archive_key, scenario.archive, hashes)
    async with lane.transaction() as conn:
        found = await conn.execute(text("SELECT archive_key FROM archives WHERE kept_until > now()"))
    keys = list(found.scalars())
    assert len(keys) == (scenario.kept != NOTHING), f"kept for a while: {keys}"
    for key in keys:
        await _check_archive(lane, key, scenario.kept, hashes)
    if scenario.archive == scenario.kept == NOTHING:
        assert not lane.store.names(), f"the store holds {lane.store.names()}"


def _check_home(lane: Lane, scenario: Scenario, hashes: dict[str, str]) -> None:
    aside = [(path / "stray").read_text() for path in lane.directory.glob(f"{ASIDE}*")]
    assert aside == [STRAY] * scenario.aside, f"set aside: {aside}"
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


async def _check_archive(lane: Lane, key: str, holds: str, hashes: dict[str, str]) -> None:
    content, meta = lane.store.read(key), lane.store.read(key.replace("home.tar.zst", ".meta")).decode()
    sha256 = await asyncio.to_thread(lambda: hashlib.sha256(content).hexdigest())
    assert meta.startswith(f"sha256:{sha256}\nbytes={len(content)} "), f"the .meta lies: {meta}"
    async with lane.transaction() as conn:
        query = text("SELECT sha256 FROM archives WHERE archive_key = :key AND removed_at IS NULL")
        assert await conn.scalar(query, {"key": key}) == sha256, "the row names another checksum"
    if hashes.get(sha256) != holds:
        await asyncio.to_thread(_check_content, lane.root / "unpacked", content, holds, hashes)


def _check_content(place: Path, content: bytes, holds: str, hashes: dict[str, str]) -> None:
    """With the tools that its owner would use."""
    subprocess.run(["rm", "-rf", place], check=True)
    place.mkdir()
    plain = subprocess.run(["zstd", "-dc"], input=content, stdout=subprocess.PIPE, check=True).stdout
    options = ["--numeric-owner", "-p", "--xattrs", "--xattrs-include=*", "--warning=no-timestamp"]
    subprocess.run(["tar", "-x", *options, "-C", place], input=plain, env=IN_UTF_8, check=True)
    _check_tree(place, holds, hashes)
