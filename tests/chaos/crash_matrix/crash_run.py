"""Run of a scenario with a crash at one point, and the checks of what must hold afterwards."""

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
from tests.chaos.crash_matrix.installation import GC_SETTINGS, SEEN_BY_GC, Installation, NotConverged
from tests.chaos.crash_matrix.scenario import ARCHIVE_PARTS, EMPTY, NOTHING, Scenario
from tests.chaos.crash_matrix.steps import AFTER, COORDINATOR, JOB, CrashPoint
from tests.chaos.crash_matrix.user_actions import STRAY, request_state
from tests.trees import IN_UTF_8, tree_hash

CLEANUP_SECONDS = 1.0
"""Seconds that the coordinator has to clean up before GC runs. A cell passes either way."""
QUIET_SECONDS = 0.2
QUIET_ATTEMPTS = 5
"""Seconds without growth after which the journal counts as complete. A later step fails no cell."""
BESIDE_HOME = {".lock", ".fence", ".marker", "home"}
NOT_REACHED = "not reached"


@dataclass(frozen=True)
class Crash:
    """SIGKILL of one or more processes at one point."""

    point: CrashPoint
    victims: tuple[str, ...]

    @property
    def leaves_job(self) -> bool:
        """Return whether the job survives its coordinator."""
        return self.point.process == JOB and JOB not in self.victims


@dataclass(frozen=True)
class Outcome:
    ok: bool
    summary: str
    seconds: float


class NotReached(Exception):  # noqa: N818 - names a fact, not a fault
    """The end of an operation without an optional step."""


async def record_points(installation: Installation, scenario: Scenario) -> list[CrashPoint]:
    """Run the scenario without a crash and return every point at which it could crash, in order."""
    await _start(installation, scenario, None)
    await installation.wait_until(scenario.is_reached, str(scenario.phase))

    async def is_recorded(_: Installation) -> bool:
        """Return whether the required steps are in the journal, which the database may precede."""
        return scenario.required_steps <= {
            point.step for point in installation.recorded_points() if point.side == AFTER
        }

    await installation.wait_until(is_recorded, f"all of {sorted(scenario.required_steps)} to be done")
    await _wait_until_clean(installation, scenario)
    return await _settled_journal(installation)


async def _settled_journal(installation: Installation) -> list[CrashPoint]:
    """Return the journal once it stops growing, or after a while, because GC never stops."""
    for _ in range(QUIET_ATTEMPTS):
        points = installation.recorded_points()
        await asyncio.sleep(QUIET_SECONDS)
        if points == installation.recorded_points():
            break
    return points


async def run_with_crash(
    installation: Installation,
    scenario: Scenario,
    crash: Crash,
    hashes: dict[str, str],
    *,
    optional: bool = False,
) -> Outcome:
    """Run the scenario with one crash.

    If the step is `optional`, the scenario may end without it.
    """
    started = time.monotonic()
    try:
        await _start(installation, scenario, crash)
        await _wait_for_crash(installation, scenario, crash, optional=optional)
        crashed = time.monotonic()
        if COORDINATOR in crash.victims:
            await installation.stop()
            installation.start(**scenario.settings)
        await installation.wait_until(scenario.is_reached, str(scenario.phase))
        seconds = time.monotonic() - crashed
        by_gc = await _wait_until_clean(installation, scenario)
        if scenario.sets_home_aside:
            await _wait_for_gc_scan(installation, ASIDE)
        retries = await _check(installation, scenario, hashes)
        _check_job(installation, crash, retries)
    except NotReached:
        return Outcome(True, NOT_REACHED, time.monotonic() - started)
    except AssertionError as error:
        return Outcome(False, f"{error}\n{await installation.diagnostics()}", time.monotonic() - started)
    words = ["ok", *(["1 retry"] if retries else []), *(["GC"] if by_gc else [])]
    return Outcome(True, ", ".join(words), seconds)


async def _start(installation: Installation, scenario: Scenario, crash: Crash | None) -> None:
    await installation.clear()
    installation.ends_in_error = scenario.phase is Phase.ERROR
    if scenario.initial_state:
        await installation.load_state(scenario.initial_state)
    dies = (crash.point, crash.victims) if crash is not None else ()
    instructions = installation.instructions(*dies, first_step=scenario.first_step)
    if scenario.first_step:
        await request_state(DesiredState.RUNNING)(installation)
        installation.start(instructions, **scenario.settings)
        await installation.wait_for_phase(Phase.RUNNING)
        await scenario.action(installation)
    else:
        await scenario.action(installation)
        installation.start(instructions, **scenario.settings)


async def _wait_for_crash(
    installation: Installation, scenario: Scenario, crash: Crash, *, optional: bool
) -> None:
    """Wait until the point is reached and its victims are dead."""
    coordinator = installation.coordinator
    assert coordinator is not None

    async def crashed(_: Installation) -> bool:
        # Read before the journal: a coordinator writes its crash to the journal before it dies.
        alive = coordinator.alive
        assert installation.has_crashed or alive, "the coordinator ended without a crash"
        return installation.has_crashed

    async def crashed_or_ended(_: Installation) -> bool:
        return await crashed(installation) or await scenario.is_reached(installation)

    if optional:
        await installation.wait_until(crashed_or_ended, crash.point.step)
        if not installation.has_crashed:
            await _settled_journal(installation)
        if not await crashed(installation):
            raise NotReached
    await installation.wait_until(crashed, crash.point.step)
    if COORDINATOR in crash.victims:
        assert await coordinator.ends(), "the coordinator survived"


async def _wait_until_clean(installation: Installation, scenario: Scenario) -> bool:
    """Wait until no unexpected file is left. Return whether GC was needed to remove it."""
    spared = (await installation.get()).archive_op_id if scenario.cancelled else None

    async def is_clean(_: Installation) -> bool:
        return not await asyncio.to_thread(unexpected_files, installation, spared)

    deadline = time.monotonic() + CLEANUP_SECONDS
    while time.monotonic() < deadline:
        if await is_clean(installation):
            return False
        await asyncio.sleep(0.03)
    await installation.stop()
    installation.start(**{**GC_SETTINGS, **scenario.settings})
    try:
        await installation.wait_until(is_clean, "GC to remove unexpected files")
    except NotConverged as error:
        raise NotConverged(f"{error}: {unexpected_files(installation, spared)}") from error
    return True


async def _wait_for_gc_scan(installation: Installation, name: str) -> None:
    """Wait until GC has seen a file that it must keep."""
    await installation.stop()
    installation.start(**GC_SETTINGS)
    await installation.wait_until(
        lambda _: installation.query_bool(SEEN_BY_GC, f"%/{name}%"), f"GC to see {name}"
    )


def unexpected_files(installation: Installation, spared: str | None = None) -> list[str]:
    """Return the files that neither belong to the workspace nor are expected beside it.

    What a cancelled archive has stored is spared: GC keeps it until there is another archive.
    """
    found = {path.name for path in installation.directory.glob("*") if path.suffix != ".tmp"}
    beside = {name for name in found - BESIDE_HOME if not name.startswith(ASIDE)}
    jobs = {f"jobs/{path.name}" for path in (installation.root / "jobs").glob("*")}
    runtime = {f"runtime/{path.name}" for path in (installation.root / "runtime").glob(".*")}
    stored = {name for name in installation.store.names() if name.split("/")[1] != spared}
    archives = {name.rpartition("/")[0] for name in stored}
    whole = {f"{archive}/{part}" for archive in archives for part in ARCHIVE_PARTS}
    return sorted(beside | jobs | runtime | {f"archives/{name}" for name in stored ^ whole})


async def _check(installation: Installation, scenario: Scenario, hashes: dict[str, str]) -> int:
    """Check everything that must hold at the end; return the number of retries."""
    workspace = await installation.get()
    assert scenario.in_error or workspace.error_reason is None, f"an error is left: {workspace}"
    assert scenario.in_error or workspace.error_count == 0, f"an error count is left: {workspace}"
    assert workspace.op_id is None and workspace.next_retry_at is None
    desired_state = (scenario.desired_state or scenario.phase).value
    assert workspace.desired_state.value == desired_state, f"desired_state is {workspace.desired_state}"
    assert await _count(installation, "cancelled") == scenario.cancelled, "the cancel took no effect"
    await asyncio.to_thread(_check_home, installation, scenario, hashes)
    await _check_archives(installation, workspace, scenario, hashes)

    async def runs_as_expected(_: Installation) -> bool:
        """Compare the containers; polled, because an IDE may be slow to answer."""
        running = (await installation.runtime.observe()).values()
        return [fact.ready for fact in running] == [True] * (scenario.phase is Phase.RUNNING)

    await installation.wait_until(runs_as_expected, "the expected containers")
    failed, ended = await _count(installation, "failed"), await _count(installation, "error", "lost", "died")
    assert failed <= 1, "it was retried more than once"
    assert ended == scenario.losses, f"{ended} losses, not {scenario.losses}"
    return failed


def _check_job(installation: Installation, crash: Crash, retries: int) -> None:
    """Check that a job survives its coordinator, is adopted, and is not counted as failed."""
    assert JOB in crash.victims or retries == 0, "a failure was counted although no job died"
    assert not (crash.leaves_job and installation.restarted_jobs()), (
        f"started again: {installation.restarted_jobs()}"
    )


async def _count(installation: Installation, *events: str) -> int:
    async with installation.transaction() as conn:
        query = text("SELECT count(*) FROM timeline WHERE event = ANY(:events)")
        return int(await conn.scalar(query, {"events": list(events)}) or 0)


async def _check_archives(
    installation: Installation, workspace: Workspace, scenario: Scenario, hashes: dict[str, str]
) -> None:
    if scenario.archive == NOTHING:
        assert scenario.purged or workspace.archive_key is None
    else:
        assert workspace.archive_key is not None
        await _check_archive(installation, workspace.archive_key, scenario.archive, hashes)
    async with installation.transaction() as conn:
        found = await conn.execute(text("SELECT archive_key FROM archives WHERE kept_until > now()"))
    keys = list(found.scalars())
    own = [workspace.archive_key] if scenario.keeps_own_archive else []
    left_behind = [key for key in keys if key not in own]
    assert len(keys) - len(left_behind) == len(own), f"kept archives: {keys}"
    assert len(left_behind) == (scenario.kept_archive != NOTHING), f"kept archives: {keys}"
    for key in left_behind:
        await _check_archive(installation, key, scenario.kept_archive, hashes)
    if scenario.archive == scenario.kept_archive == NOTHING:
        assert not installation.store.names(), f"the store holds {installation.store.names()}"


def _check_home(installation: Installation, scenario: Scenario, hashes: dict[str, str]) -> None:
    aside = [(path / "stray").read_text() for path in installation.directory.glob(f"{ASIDE}*")]
    assert aside == [STRAY] * scenario.sets_home_aside, f"set aside: {aside}"
    homes = list(installation.root.glob("volumes/users/*/workspaces/*/home"))
    if scenario.home == NOTHING:
        # A marker may outlive its home; the next home replaces it.
        assert not homes, f"there is a home: {homes}"
        return
    assert homes == [installation.home] and (installation.directory / ".marker").exists(), (
        f"not one home: {homes}"
    )
    _check_tree(installation.home, scenario.home, hashes)


def _check_tree(tree: Path, expected: str, hashes: dict[str, str]) -> None:
    if expected == EMPTY:
        assert not list(tree.iterdir()) and tree.stat().st_mode & 0o777 == 0o700
    else:
        assert tree_hash(tree) == hashes[expected], f"the tree is not the {expected} one"


async def _check_archive(installation: Installation, key: str, expected: str, hashes: dict[str, str]) -> None:
    content, meta = (
        installation.store.read(key),
        installation.store.read(key.replace("home.tar.zst", ".meta")).decode(),
    )
    sha256 = await asyncio.to_thread(lambda: hashlib.sha256(content).hexdigest())
    assert meta.startswith(f"sha256:{sha256}\nbytes={len(content)} "), f"the .meta does not match: {meta}"
    async with installation.transaction() as conn:
        query = text("SELECT sha256 FROM archives WHERE archive_key = :key AND removed_at IS NULL")
        assert await conn.scalar(query, {"key": key}) == sha256, "the row names another checksum"
    if hashes.get(sha256) != expected:
        await asyncio.to_thread(_check_content, installation.root / "unpacked", content, expected, hashes)


def _check_content(place: Path, content: bytes, expected: str, hashes: dict[str, str]) -> None:
    """Unpack an archive with zstd and tar, as its owner would, and compare the tree."""
    subprocess.run(["rm", "-rf", place], check=True)
    place.mkdir()
    plain = subprocess.run(["zstd", "-dc"], input=content, stdout=subprocess.PIPE, check=True).stdout
    options = ["--numeric-owner", "-p", "--xattrs", "--xattrs-include=*", "--warning=no-timestamp"]
    subprocess.run(["tar", "-x", *options, "-C", place], input=plain, env=IN_UTF_8, check=True)
    _check_tree(place, expected, hashes)
