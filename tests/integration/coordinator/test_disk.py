"""The disk watchdog of a real leader, on a small disk with real homes."""

import os
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import asyncpg
import pytest
from sqlalchemy import select

from codehub.coordinator.disk_watchdog import DiskWatchdog
from codehub.database import gate, migrate
from codehub.database.home_sizes import to_record
from codehub.database.leader_database import PostgresLeaderDatabase, RowLocked
from codehub.database.tables import home_sizes
from codehub.domain import continue_operation
from codehub.domain.disk import FreeSpace, HomeRecord, HomeSize, LiveHome, Notice, Reserve
from codehub.domain.states import DesiredState, Operation, Phase
from codehub.domain.workspace import Workspace
from codehub.embedded.emergency_reserve import EmergencyReserve
from codehub.embedded.postgres import EmbeddedPostgres
from codehub.embedded.private_paths import make_dir
from codehub.storage.volumes.local_volumes import LocalVolumes
from tests.integration.coordinator.conftest import CoordinatorStack, new_stack
from tests.integration.storage.conftest import quota_disk, small_disk
from tests.integration.storage.test_one_disk import Disk
from tests.services import TOOLS_DIR, short_temp_dir
from tests.waiting import eventually

MIB = 1 << 20
RESERVE = 16 * MIB


@pytest.fixture
async def disk() -> AsyncIterator[Disk]:
    directory = short_temp_dir(Path("/tmp"))
    async with small_disk(directory / "d", 64):
        yield Disk(directory / "d")
    shutil.rmtree(directory)


@pytest.fixture
async def stack(disk: Disk, database_url: str, redis_url: str) -> AsyncIterator[CoordinatorStack]:
    async with new_stack(database_url, redis_url, within=disk.path) as stack:
        yield stack


async def start(stack: CoordinatorStack) -> None:
    await stack.start(
        stack.with_settings(disk_reserve_bytes=RESERVE, disk_grace_seconds=1, coordinator_disk_interval=0.2)
    )


async def running(stack: CoordinatorStack, megabytes: int) -> str:
    workspace_id = await stack.create()
    await stack.until_phase(workspace_id, Phase.RUNNING)
    (await stack.home(workspace_id) / "data").write_bytes(os.urandom(megabytes * MIB))
    return workspace_id


async def record(stack: CoordinatorStack, workspace_id: str) -> HomeRecord | None:
    async with stack.engine.connect() as conn:
        query = select(home_sizes).where(home_sizes.c.workspace_id == workspace_id)
        row = (await conn.execute(query)).mappings().one_or_none()
        return None if row is None else to_record(row)


def waits(workspace: Workspace) -> bool:
    return "Waiting for disk space" in (workspace.error_message or "")


async def test_the_largest_is_warned_then_stopped_and_its_start_waits_for_room(
    disk: Disk, stack: CoordinatorStack
) -> None:
    await start(stack)
    hog, small = await running(stack, 20), await running(stack, 1)
    disk.leave(10)
    await stack.until_phase(hog, Phase.STANDBY)
    entries = await stack.timeline(hog)
    warned = next(line for line in entries if line.startswith("warned: Warning: the disk has"))
    stopped = next(line for line in entries if line.startswith("stopped: Stopped: the disk has"))
    assert entries.index(warned) < entries.index(stopped)
    assert "(reserve 16 MiB) and this home has 2" in stopped
    assert (await stack.home(hog) / "data").stat().st_size == 20 * MIB
    known = await record(stack, hog)
    assert known is not None
    assert f"stopped: {known.notice}" == stopped
    assert [entry.name for entry in known.size.largest] == ["data"]

    await stack.set_desired_state(hog, DesiredState.RUNNING)
    waiting = await stack.until(hog, waits)
    assert (waiting.operation, waiting.error_count, waiting.error_reason) == (Operation.STARTING, 0, None)
    assert (await stack.get(small)).phase is Phase.RUNNING
    assert not any("disk" in line for line in await stack.timeline(small))

    disk.make_room()
    ready = await stack.until_phase(hog, Phase.RUNNING)
    assert ready.error_message is None

    async def cleared() -> bool:
        known = await record(stack, hog)
        return known is not None and known.notice is None and known.stopped_at is None

    await eventually(cleared, "the notice to go once the workspace runs again")


async def test_a_restore_waits_for_room_and_goes_on(disk: Disk, stack: CoordinatorStack) -> None:
    await start(stack)
    workspace_id = await stack.create(DesiredState.ARCHIVED)
    await stack.until_phase(workspace_id, Phase.ARCHIVED)
    disk.leave(10)
    await stack.set_desired_state(workspace_id, DesiredState.RUNNING)
    waiting = await stack.until(workspace_id, waits)
    assert (waiting.operation, waiting.error_count) == (Operation.RESTORING, 0)
    disk.make_room()
    await stack.until_phase(workspace_id, Phase.RUNNING)


async def test_a_start_that_waits_too_long_is_given_up_without_an_error(
    disk: Disk, stack: CoordinatorStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it waits, it cannot be archived, which would free space."""
    monkeypatch.setattr(continue_operation, "START_WAITS", timedelta(seconds=1))
    await start(stack)
    workspace_id = await stack.create(DesiredState.STANDBY)
    await stack.until_phase(workspace_id, Phase.STANDBY)
    disk.leave(10)
    await stack.set_desired_state(workspace_id, DesiredState.RUNNING)
    given_up = await stack.until(
        workspace_id, lambda w: w.desired_state is DesiredState.STANDBY and w.operation is Operation.NONE
    )
    assert (given_up.phase, given_up.error_reason, given_up.error_count) == (Phase.STANDBY, None, 0)
    assert waits(given_up)
    assert any(
        line.startswith("cancelled: STARTING was given up.") for line in await stack.timeline(workspace_id)
    )
    disk.make_room()
    assert (await stack.reach(workspace_id, DesiredState.RUNNING)).error_message is None


async def test_the_home_with_the_most_files_is_stopped_before_the_inodes_are_used_up(
    database_url: str, redis_url: str
) -> None:
    directory = short_temp_dir(Path("/tmp"))
    async with (
        small_disk(directory / "d", 64, inodes=4000),
        new_stack(database_url, redis_url, within=directory / "d") as stack,
    ):
        await stack.start(
            stack.with_settings(disk_reserve_files=1000, disk_grace_seconds=1, coordinator_disk_interval=0.2)
        )
        large, many = await running(stack, 20), await running(stack, 1)
        fill_with_files(await stack.home(many), directory / "d", leave=800)
        await stack.until_phase(many, Phase.STANDBY)
        stopped = next(
            line for line in await stack.timeline(many) if line.startswith("stopped: Stopped: the disk")
        )
        assert "can take only " in stopped and " more files (reserve 1,000) and this home has " in stopped
        assert (await stack.get(large)).phase is Phase.RUNNING

        await stack.set_desired_state(many, DesiredState.RUNNING)
        waiting = await stack.until(many, waits)
        assert "more files, less than the reserve of 1,000" in (waiting.error_message or "")
        shutil.rmtree(await stack.home(many) / "files")
        await stack.until_phase(many, Phase.RUNNING)
    shutil.rmtree(directory)


def fill_with_files(home: Path, disk: Path, *, leave: int) -> None:
    (home / "files").mkdir()
    for number in range(os.statvfs(disk).f_favail - leave):
        (home / "files" / f"{number}").touch()


def runner(
    stack: CoordinatorStack,
    epoch: int,
    volumes: LocalVolumes | None = None,
    database: PostgresLeaderDatabase | None = None,
) -> DiskWatchdog:
    return DiskWatchdog(
        database or stack.leader_database(epoch, timedelta(days=1)),
        volumes or stack.providers.volumes,
        Reserve(RESERVE),
        timedelta(0),
        uid_base=stack.settings.workspace_uid_base,
        quota_bytes=0,
        clock=lambda: datetime.now(UTC),
    )


async def test_a_disk_that_is_not_mounted_stops_no_workspace(disk: Disk, stack: CoordinatorStack) -> None:
    await start(stack)
    hog = await running(stack, 20)
    epoch = await stack.take_leadership()
    disk.leave(10)
    elsewhere = LocalVolumes(stack.settings.data_dir / "volumes", "another-installation")
    for _ in range(3):
        await runner(stack, epoch, elsewhere).tick()
    assert (await stack.get(hog)).desired_state is DesiredState.RUNNING
    assert await record(stack, hog) is None or not (await record(stack, hog)).notice  # type: ignore[union-attr]


async def test_only_an_undisturbed_workspace_is_stopped(disk: Disk, stack: CoordinatorStack) -> None:
    await start(stack)
    workspace_id = await running(stack, 1)
    epoch = await stack.take_leadership()
    database = stack.leader_database(epoch, timedelta(days=1))
    home = next(item for item in await database.homes() if item.workspace_id == workspace_id)
    notice, now = Notice(workspace_id, "Stopped: a test."), datetime.now(UTC)

    earlier = LiveHome(**{**home.__dict__, "phase_changed_at": now})
    assert not await database.stop_for_disk(earlier, notice, now)
    await stack.set_desired_state(workspace_id, DesiredState.ARCHIVED)
    assert not await database.stop_for_disk(home, notice, now)
    assert (await stack.get(workspace_id)).desired_state is DesiredState.ARCHIVED
    await stack.set_desired_state(workspace_id, DesiredState.RUNNING)
    assert await database.stop_for_disk(home, notice, now)
    assert (await stack.get(workspace_id)).desired_state is DesiredState.STANDBY


class WithoutSpace(PostgresLeaderDatabase):
    """Database that has no space left for sizes and notices, and still enough for a stop."""

    async def record_sizes(self, sizes: Mapping[str, HomeSize], now: datetime) -> None:
        raise asyncpg.DiskFullError("could not extend file: No space left on device")

    async def warn_of_disk(self, notice: Notice, now: datetime) -> None:
        raise asyncpg.DiskFullError("could not extend file: No space left on device")


async def test_the_largest_is_stopped_although_the_database_has_no_space_for_sizes_and_warnings(
    disk: Disk, stack: CoordinatorStack
) -> None:
    await start(stack)
    hog, other = await running(stack, 20), await running(stack, 10)
    epoch = await stack.take_leadership()
    disk.leave(0.1)
    database = WithoutSpace(stack.pool, stack.engine, epoch, timedelta(days=1), stack.settings.backends)
    watchdog = runner(stack, epoch, database=database)
    with pytest.raises(ExceptionGroup) as failed:
        await watchdog.tick()
    assert [type(error) for error in failed.value.exceptions] == [asyncpg.DiskFullError] * 2
    assert (await stack.get(hog)).desired_state is DesiredState.STANDBY
    assert (await stack.get(other)).desired_state is DesiredState.RUNNING


async def test_a_locked_row_of_one_workspace_does_not_keep_the_others_running(
    disk: Disk, stack: CoordinatorStack
) -> None:
    await start(stack)
    locked, other = await running(stack, 20), await running(stack, 10)
    epoch = await stack.take_leadership()
    watchdog = runner(stack, epoch)
    disk.leave(3)  # less than a quarter of the reserve: every warned one above its share is stopped
    await watchdog.tick()
    async with stack.engine.begin() as conn:
        await gate.lock_workspace(conn, locked)
        with pytest.raises(ExceptionGroup) as failed:
            await watchdog.tick()
    assert [type(error) for error in failed.value.exceptions] == [RowLocked]
    assert (await stack.get(locked)).desired_state is DesiredState.RUNNING
    assert (await stack.get(other)).desired_state is DesiredState.STANDBY
    await watchdog.tick()
    assert (await stack.get(locked)).desired_state is DesiredState.STANDBY


async def test_measuring_writes_no_workspace_row_and_nothing_that_is_known(
    disk: Disk, stack: CoordinatorStack
) -> None:
    await start(stack)
    workspace_id = await running(stack, 2)
    epoch = await stack.take_leadership()
    before = await stack.get(workspace_id)
    await runner(stack, epoch).tick()
    known = await record(stack, workspace_id)
    assert known is not None
    assert 2 * MIB <= known.size.bytes < 3 * MIB
    await runner(stack, epoch).tick()
    assert await record(stack, workspace_id) == known
    assert await stack.get(workspace_id) == before


@asynccontextmanager
async def postgres_on(disk: Disk) -> AsyncIterator[EmbeddedPostgres]:
    """Everything is on one disk, as with `codehub up`."""
    postgres = EmbeddedPostgres(disk.path / "pg", TOOLS_DIR, durable=False)
    make_dir(disk.path / "pg", 0o711)
    await postgres.start()
    try:
        await migrate.upgrade(postgres.url)
        yield postgres
        assert postgres.process is not None
        assert postgres.process.poll() is None
    finally:
        postgres.stop()


async def test_a_process_that_writes_without_end_is_stopped_and_postgresql_beside_it_goes_on(
    redis_url: str,
) -> None:
    directory = short_temp_dir(Path("/tmp"))
    async with small_disk(directory / "d", 400):
        disk = Disk(directory / "d")
        async with postgres_on(disk) as postgres, new_stack(postgres.url, redis_url, disk.path) as stack:
            await stack.start(
                stack.with_settings(
                    disk_reserve_bytes=128 * MIB, disk_grace_seconds=1, coordinator_disk_interval=0.2
                )
            )
            small = await stack.create()
            await stack.until_phase(small, Phase.RUNNING)
            writer = await stack.create(image="writer")
            await stack.until(writer, lambda w: w.desired_state is DesiredState.STANDBY)
            await stack.until_phase(writer, Phase.STANDBY)
            assert any(line.startswith("stopped: Stopped: the disk") for line in await stack.timeline(writer))
            assert disk.free_bytes() > 8 * MIB
            assert (await stack.get(small)).phase is Phase.RUNNING
            await stack.reach(small, DesiredState.STANDBY)
    shutil.rmtree(directory)


@pytest.mark.full  # PostgreSQL may have no space left to record the stop (docs/disk.md)
async def test_a_program_that_fills_the_disk_as_fast_as_it_can_is_stopped(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes every byte at once, also those of the reserve that is given back to PostgreSQL."""
    directory = short_temp_dir(Path("/tmp"))
    watched = False

    async def free_space(self: LocalVolumes) -> FreeSpace:
        """Return nothing alarming until the disk is full, as if the program were that fast."""
        return await original(self) if watched else FreeSpace(1 << 40)

    original = LocalVolumes.free_space
    monkeypatch.setattr(LocalVolumes, "free_space", free_space)
    async with small_disk(directory / "d", 600):
        disk = Disk(directory / "d")
        reserve = EmergencyReserve(disk.path / "pg")
        async with postgres_on(disk) as postgres, new_stack(postgres.url, redis_url, disk.path) as stack:
            reserve.check()
            await stack.start(
                stack.with_settings(disk_reserve_bytes=128 * MIB, coordinator_disk_interval=0.2)
            )
            writer = await stack.create(image="flood")
            await stack.until_phase(writer, Phase.RUNNING)

            async def is_full() -> bool:
                return disk.free_bytes() == 0

            try:
                await eventually(is_full, "the disk to be full")
                for cache in postgres.cluster.rglob("pg_internal.init"):
                    cache.unlink()  # PostgreSQL writes it again for the next connection, which it refuses now
                reserve.check()
                await eventually(is_full, "the reserve to be used up as well")
                watched = True
                await stack.until(writer, lambda w: w.desired_state is DesiredState.STANDBY)
                await stack.until_phase(writer, Phase.STANDBY)
                assert any(
                    line.startswith("stopped: Stopped: the disk") for line in await stack.timeline(writer)
                )
            finally:
                await stack.providers.runtime.stop(writer)
    shutil.rmtree(directory)


async def test_a_workspace_ends_at_its_quota_and_its_full_home_starts_again(
    database_url: str, redis_url: str
) -> None:
    quota = 80 * MIB
    with quota_disk() as directory:
        async with new_stack(database_url, redis_url, within=directory) as stack:
            await stack.start(stack.with_settings(home_quota_bytes=quota, coordinator_disk_interval=0.2,
                                                  disk_reserve_bytes=100 * MIB))  # fmt: skip
            full, other = await stack.create(image="writer"), await stack.create()

            async def is_full() -> bool:
                known = await record(stack, full)
                return known is not None and known.size.is_full

            await eventually(is_full, "the home to be recorded as full")
            known = await record(stack, full)
            assert known is not None
            assert (known.size.quota_bytes, known.notice) == (quota, None)
            assert [entry.name for entry in known.size.largest] == ["data"]
            await stack.until_phase(other, Phase.RUNNING)
            (await stack.home(other) / "data").write_bytes(bytes(MIB))
            await stack.reach(full, DesiredState.STANDBY)
            assert (await stack.reach(full, DesiredState.RUNNING)).error_count == 0
