"""The lifecycle of a workspace with a real coordinator."""

import os
import re
import shutil
import socket
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import select, text, update

from codehub.coordinator.clock_and_ids import REAL
from codehub.coordinator.controller import LOCKED_ROW_RETRY, Controller, Intervals
from codehub.coordinator.effect_executor import EffectExecutor, ExecutorRules
from codehub.coordinator.leadership_loop import rules_of
from codehub.coordinator.metrics import CoordinatorMetrics
from codehub.coordinator.observer import LeaderState
from codehub.coordinator.work_queue import WorkQueue
from codehub.database import gate
from codehub.database.gate import RecoverFrom
from codehub.database.leadership import StaleLeader
from codehub.database.tables import workspaces
from codehub.domain.conditions import holds
from codehub.domain.disk import Reserve
from codehub.domain.observation import ContainerFact, Unknown
from codehub.domain.states import ConditionName, DesiredState, ErrorReason, Operation, Phase
from codehub.domain.user_limits import Limits
from codehub.domain.workspace import RecoverSource, Workspace
from codehub.host.file_lock import try_lock
from codehub.runtimes.base import RuntimeUnobservable, WorkloadSpec
from codehub.runtimes.process.runtime import ProcessRuntime
from codehub.storage.errors import TooManyArchives
from codehub.storage.jobs.local_jobs import LocalJobs
from codehub.storage.jobs.spec import ArchiveJob, DeleteJob, JobSpec
from tests.integration.coordinator.conftest import LIMITS, UID_BASE, CoordinatorStack, value
from tests.trees import chown_to_home_owner, make_tree, tree_hash
from tests.waiting import eventually, until, wait_for


def controller_of(
    stack: CoordinatorStack, epoch: int, clock: Callable[[], datetime] = REAL.clock
) -> Controller:
    """Return a leader's controller, which the test drives step by step."""
    state, settings = LeaderState(), stack.settings
    return Controller(
        stack.leader_database(epoch, timedelta(1)),
        stack.providers,
        EffectExecutor(stack.providers, state, ExecutorRules(Reserve(0), settings.workspace_uid_base), epoch),
        state,
        rules=rules_of(settings),
        intervals=Intervals(1, 1),
        clock_and_ids=replace(REAL, clock=clock),
        metrics=CoordinatorMetrics(),
    )


async def test_the_whole_life_keeps_every_byte(stack: CoordinatorStack) -> None:
    await stack.start()
    workspace_id = await stack.create()
    running = await stack.until_phase(workspace_id, Phase.RUNNING)
    assert running.upstream is not None
    home = await stack.home(workspace_id)
    make_tree(home, seed=1)
    chown_to_home_owner(home)
    before = tree_hash(home)

    standing = await stack.reach(workspace_id, DesiredState.STANDBY)
    assert standing.upstream is None
    archived = await stack.reach(workspace_id, DesiredState.ARCHIVED)
    assert not home.exists()
    assert archived.archive_key is not None
    assert archived.home_ctx is None
    restored = await stack.reach(workspace_id, DesiredState.RUNNING)
    assert tree_hash(home) == before
    assert restored.home_ctx is not None
    assert restored.home_ctx.archive_key == archived.archive_key


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a workspace gets its own user")
async def test_workspaces_of_two_installations_on_one_machine_can_be_of_different_users(
    stack: CoordinatorStack,
) -> None:
    other = UID_BASE + 1_000_000
    await stack.start(stack.with_settings(workspace_uid_base=other))
    workspace_id = await stack.create()
    number = (await stack.until_phase(workspace_id, Phase.RUNNING)).number
    assert (await stack.home(workspace_id)).stat().st_uid == other + number


async def test_the_timeline_has_a_sentence_for_each_step(stack: CoordinatorStack) -> None:
    await stack.start()
    workspace_id = await stack.create()
    await stack.until_phase(workspace_id, Phase.RUNNING)
    entries = [re.sub(r"in (under )?[\d.]+ s", "in N s", line) for line in await stack.timeline(workspace_id)]
    assert entries == [
        "created: Created. It will be started.",
        "claimed: Preparing the home.",
        "finished: Prepared the home in N s.",
        "claimed: Starting the IDE.",
        "finished: Started in N s.",
    ]


async def test_a_new_workspace_can_be_archived_at_once_and_then_run(stack: CoordinatorStack) -> None:
    await stack.start()
    workspace_id = await stack.create(DesiredState.ARCHIVED)
    await stack.until_phase(workspace_id, Phase.ARCHIVED)
    await stack.reach(workspace_id, DesiredState.RUNNING)
    assert list((await stack.home(workspace_id)).iterdir()) == []


async def test_the_timeline_says_what_an_archive_left_out(stack: CoordinatorStack) -> None:
    await stack.start()
    workspace_id = await stack.create(DesiredState.STANDBY)
    await stack.until_phase(workspace_id, Phase.STANDBY)
    home = await stack.home(workspace_id)
    os.mkfifo(home / "one line\nor two")
    os.mkfifo(home / "pipe")
    directory = os.open(home, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"/proc/self/fd/{directory}/socket")  # a whole path may be too long
    os.close(directory)
    await stack.reach(workspace_id, DesiredState.ARCHIVED)
    [archived] = [line for line in await stack.timeline(workspace_id) if line.startswith("archived: ")]
    assert archived.endswith(
        "It left out 1 socket and 2 pipes: they cannot be archived (./one line\\nor two, ./pipe, ./socket)."
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of others")
async def test_the_timeline_says_whose_files_a_restore_gave_to_the_workspace(stack: CoordinatorStack) -> None:
    await stack.start()
    workspace_id = await stack.create(DesiredState.STANDBY)
    await stack.until_phase(workspace_id, Phase.STANDBY)
    home = await stack.home(workspace_id)
    owner = home.stat().st_uid
    (home / "of root").write_text("kept")
    await stack.reach(workspace_id, DesiredState.ARCHIVED)
    await stack.reach(workspace_id, DesiredState.STANDBY)
    assert (home / "of root").read_text() == "kept" and (home / "of root").stat().st_uid == owner
    [restored] = [line for line in await stack.timeline(workspace_id) if "Restored" in line]
    assert restored.endswith("It gave 1 entry of other users to the workspace's user (./of root).")


async def test_delete_goes_through_the_archive_and_undelete_brings_the_home_back(
    stack: CoordinatorStack,
) -> None:
    await stack.start()
    workspace_id = await stack.create()
    await stack.until_phase(workspace_id, Phase.RUNNING)
    home = await stack.home(workspace_id)
    make_tree(home, seed=2)
    chown_to_home_owner(home)
    before = tree_hash(home)
    async with stack.engine.begin() as conn:
        await gate.delete(conn, workspace_id, actor="u1", now=datetime.now(UTC))
    deleted = await stack.until_phase(workspace_id, Phase.DELETED)
    assert deleted.archive_key is not None
    assert not home.exists()
    async with stack.engine.begin() as conn:
        undeleted = await gate.undelete(conn, workspace_id, actor="u1", limits=LIMITS, now=datetime.now(UTC))
    assert undeleted.desired_state is DesiredState.ARCHIVED
    await stack.until_phase(workspace_id, Phase.ARCHIVED)
    await stack.reach(workspace_id, DesiredState.STANDBY)
    assert tree_hash(home) == before


async def test_what_changes_a_home_after_its_archive_is_archived_too(
    stack: CoordinatorStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stack.start()
    workspace_id = await stack.create(DesiredState.STANDBY)
    await stack.until_phase(workspace_id, Phase.STANDBY)
    home = await stack.home(workspace_id)
    make_tree(home, seed=6)
    start, late = LocalJobs.start, ["a first word", "a second word"]

    async def start_late(jobs: LocalJobs, job_id: str, spec: JobSpec) -> bool:
        if isinstance(spec, DeleteJob) and late:
            (home / "late").write_text(late.pop(0))
        return await start(jobs, job_id, spec)

    monkeypatch.setattr(LocalJobs, "start", start_late)
    archived = await stack.reach(workspace_id, DesiredState.ARCHIVED)
    assert archived.error_reason is None
    entries = await stack.timeline(workspace_id)
    assert sum("has changed since it was archived" in line for line in entries) == 2, entries
    await stack.reach(workspace_id, DesiredState.STANDBY)
    assert (home / "late").read_text() == "a second word"


async def test_an_archive_that_waits_its_turn_does_not_time_out(
    stack: CoordinatorStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, waits = LocalJobs.start, [True]

    async def start_in_turn(jobs: LocalJobs, job_id: str, spec: JobSpec) -> bool:
        if isinstance(spec, ArchiveJob) and waits:
            raise TooManyArchives
        return await start(jobs, job_id, spec)

    monkeypatch.setattr(LocalJobs, "start", start_in_turn)
    await stack.start()
    workspace_id = await stack.create(DesiredState.STANDBY)
    await stack.until_phase(workspace_id, Phase.STANDBY)
    now = datetime.now(UTC)
    controller = controller_of(stack, await stack.take_leadership(), lambda: now)
    await stack.set_desired_state(workspace_id, DesiredState.ARCHIVED)
    await controller.reconcile(workspace_id)
    claimed = await stack.get(workspace_id)
    assert claimed.operation is Operation.ARCHIVING
    for _ in range(8):
        now += rules_of(stack.settings).timeouts[Operation.ARCHIVING] / 2
        await controller.reconcile(workspace_id)
    assert (await stack.get(workspace_id)).op_id == claimed.op_id, "it has timed out"
    waits.clear()

    async def goes_on() -> Workspace:
        await controller.reconcile(workspace_id)
        return await stack.get(workspace_id)

    archived = await eventually(goes_on, "the archive", lambda w: w.operation is Operation.NONE)
    assert (archived.phase, archived.error_count) == (Phase.ARCHIVED, 0)


async def test_a_job_that_an_earlier_leader_starts_late_is_no_failure(
    stack: CoordinatorStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, late = LocalJobs.start, [True]

    async def start_second(jobs: LocalJobs, job_id: str, spec: JobSpec) -> bool:
        if isinstance(spec, ArchiveJob) and late:
            late.clear()
            assert await start(jobs, job_id, replace(spec, epoch=spec.epoch - 1))
        return await start(jobs, job_id, spec)

    monkeypatch.setattr(LocalJobs, "start", start_second)
    await stack.start()
    workspace_id = await stack.create(DesiredState.STANDBY)
    await stack.until_phase(workspace_id, Phase.STANDBY)
    await stack.reach(workspace_id, DesiredState.ARCHIVED)
    entries = await stack.timeline(workspace_id)
    assert not late and not [line for line in entries if line.startswith("failed")], entries


async def test_a_container_that_vanishes_is_started_again(stack: CoordinatorStack) -> None:
    await stack.start()
    workspace_id = await stack.create()
    first = await stack.until_phase(workspace_id, Phase.RUNNING)
    home = await stack.home(workspace_id)
    # Without the lock, the container is back before all of it is gone.
    lock = wait_for(lambda: try_lock(home.with_name(".lock")), "the lock of the home")
    await stack.delete_container(workspace_id)
    os.close(lock)
    await stack.until(
        workspace_id,
        lambda w: w.phase is Phase.RUNNING and w.started_at not in (None, first.started_at),
    )


async def test_routes_of_containers_that_are_gone_go_before_any_other_is_started(
    stack: CoordinatorStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On Docker, the next container may get the address of another workspace's earlier container.

    While the containers cannot be observed, no route can be removed: nothing is started.
    """
    await stack.start()
    both = [await stack.create(), await stack.create()]
    for workspace_id in both:
        await stack.until_phase(workspace_id, Phase.RUNNING)
    await stack.stop()
    for workspace_id in both:
        await stack.delete_container(workspace_id)
    start, routes = ProcessRuntime.start, []

    async def start_watched(runtime: ProcessRuntime, spec: WorkloadSpec) -> None:
        routes.append([(await stack.get(workspace_id)).upstream for workspace_id in both])
        await start(runtime, spec)

    observe, failed_looks, is_down = ProcessRuntime.observe, 0, True

    async def fail_to_observe(runtime: ProcessRuntime) -> dict[str, ContainerFact | Unknown]:
        nonlocal failed_looks
        if is_down:
            failed_looks += 1
            raise RuntimeUnobservable("the engine does not answer")
        return await observe(runtime)

    monkeypatch.setattr(ProcessRuntime, "observe", fail_to_observe)
    monkeypatch.setattr(ProcessRuntime, "start", start_watched)
    monkeypatch.setattr(WorkQueue.__init__, "__defaults__", (1,))  # the second has to wait
    metrics = await stack.start()

    async def hinted() -> bool:
        await stack.hint(both[0])
        return bool(routes) or value(metrics, "codehub_coordinator_queue_depth") > 0

    await eventually(hinted, "a hint to arrive")
    hinted_at = failed_looks
    await until(lambda: routes or failed_looks > hinted_at + 1, "a worker that does not wait to go on")
    is_down = False
    for workspace_id in both:
        await stack.until(workspace_id, lambda w: len(routes) >= 2 and w.upstream is not None)
    assert routes[0] == [None, None]


async def test_an_ide_that_keeps_dying_ends_in_error_with_its_last_words_and_without_its_container(
    stack: CoordinatorStack,
) -> None:
    await stack.start()
    workspace_id = await stack.create(image="broken")
    ended = await stack.until_phase(workspace_id, Phase.ERROR)
    assert ended.error_reason is ErrorReason.RetryExceeded
    assert ended.error_count == 3
    gone = await stack.until(workspace_id, lambda w: not holds(w.conditions, ConditionName.CONTAINER_EXISTS))
    assert workspace_id not in await stack.providers.runtime.observe()
    assert "no such luck" in (gone.error_message or "")
    assert "no such luck" in (await stack.timeline(workspace_id))[-1]
    await stack.stop()
    await stack.create(limits=Limits(1, 1))  # raises while the dead container counts


async def test_an_unknown_image_says_which_are_offered(stack: CoordinatorStack) -> None:
    await stack.start()
    workspace_id = await stack.create(image="gone")
    ended = await stack.until_phase(workspace_id, Phase.ERROR)
    assert "tiny" in (ended.error_message or "")


async def test_a_failing_disk_ends_in_an_error_that_names_it(stack: CoordinatorStack) -> None:
    await stack.start()
    workspace_id = await stack.create(DesiredState.STANDBY)
    await stack.until_phase(workspace_id, Phase.STANDBY)
    await stack.stop()
    fence = (await stack.home(workspace_id)).parent / ".fence"
    fence.unlink()
    fence.mkdir()
    await stack.start()
    await stack.set_desired_state(workspace_id, DesiredState.RUNNING)
    ended = await stack.until_phase(workspace_id, Phase.ERROR)
    assert ended.error_reason is ErrorReason.RetryExceeded
    assert "directory" in (ended.error_message or "")


async def test_a_lost_home_is_never_replaced_silently(stack: CoordinatorStack) -> None:
    await stack.start()
    workspace_id = await stack.create()
    await stack.until_phase(workspace_id, Phase.RUNNING)
    make_tree(await stack.home(workspace_id), seed=3)
    archived = await stack.reach(workspace_id, DesiredState.ARCHIVED)
    await stack.reach(workspace_id, DesiredState.STANDBY)
    home = await stack.home(workspace_id)
    before = tree_hash(home)
    shutil.rmtree(home)
    lost = await stack.until_phase(workspace_id, Phase.ERROR)
    assert lost.error_reason is ErrorReason.DataLost
    assert not home.exists()
    assert archived.archive_op_id is not None
    source = RecoverFrom(RecoverSource.ARCHIVE, archived.archive_op_id)
    async with stack.engine.begin() as conn:
        await gate.recover(
            conn, workspace_id, actor="u1", limits=LIMITS, source=source, now=datetime.now(UTC)
        )
    await stack.until_phase(workspace_id, Phase.STANDBY)
    assert tree_hash(home) == before


@pytest.mark.parametrize("source", RecoverSource)
async def test_a_foreign_home_is_set_aside_when_the_owner_has_chosen(
    stack: CoordinatorStack, source: RecoverSource
) -> None:
    await stack.start()
    workspace_id = await stack.create(DesiredState.STANDBY)
    await stack.until_phase(workspace_id, Phase.STANDBY)
    archived = await stack.reach(workspace_id, DesiredState.ARCHIVED)
    await stack.reach(workspace_id, DesiredState.STANDBY)
    home = await stack.home(workspace_id)
    (home / "work").write_text("of another generation")
    (home.parent / ".marker").write_text('{"op_id": "foreign", "archive_key": null}')
    lost = await stack.until_phase(workspace_id, Phase.ERROR)
    assert lost.error_reason is ErrorReason.DataLost
    assert (home / "work").exists()
    chosen = archived.archive_op_id if source is RecoverSource.ARCHIVE else None
    async with stack.engine.begin() as conn:
        await gate.recover(
            conn,
            workspace_id,
            actor="u1",
            limits=LIMITS,
            source=RecoverFrom(source, chosen),
            now=datetime.now(UTC),
        )
    await stack.until_phase(workspace_id, Phase.STANDBY)
    assert list(home.iterdir()) == []
    assert (home.parent / ".aside-foreign" / "work").read_text() == "of another generation"


async def test_an_unmounted_volumes_root_reads_as_unknown_not_gone(stack: CoordinatorStack) -> None:
    """An idle row is not written. A workspace with a new request shows why it waits."""
    await stack.start()
    idle, requested = await stack.create(DesiredState.STANDBY), await stack.create(DesiredState.STANDBY)
    for workspace_id in (idle, requested):
        await stack.until_phase(workspace_id, Phase.STANDBY)
    await stack.stop()  # the next leader need not recheck workspaces that have just changed
    before = await stack.get(idle)
    root = stack.settings.data_dir / "volumes"
    root.rename(root.with_name("away"))
    await stack.start()
    await stack.set_desired_state(requested, DesiredState.RUNNING)

    async def hinted() -> Workspace:
        """Repeat the hint of the request, which is lost if the leader does not listen yet."""
        await stack.hint(requested)
        return await stack.get(requested)

    reason = ConditionName.VOLUME_READY
    seen = await eventually(hinted, "the reason", lambda w: w.conditions[reason].reason == "Unobservable")
    assert seen.phase is Phase.STANDBY
    root.with_name("away").rename(root)
    await stack.until_phase(requested, Phase.RUNNING)
    assert await stack.get(idle) == before


@pytest.mark.parametrize("lost", ["volumes", "runtime"])
async def test_an_outage_writes_and_queues_nothing(stack: CoordinatorStack, lost: str) -> None:
    """Neither an outage of the volumes nor one of the runtime."""
    await stack.start()
    both = await stack.create(), await stack.create(DesiredState.STANDBY)
    before = [
        await stack.until_phase(both[0], Phase.RUNNING),
        await stack.until_phase(both[1], Phase.STANDBY),
    ]
    controller = controller_of(stack, await stack.take_leadership())
    root = stack.settings.data_dir / lost
    root.rename(root.with_name("away"))
    try:
        await controller.sweep()
    finally:
        root.with_name("away").rename(root)
    assert len(controller.queue) == 0
    await controller.sweep()
    assert len(controller.queue) == 0
    assert [await stack.get(workspace_id) for workspace_id in both] == before


async def test_an_archive_that_is_back_is_found_again_beside_a_living_home(stack: CoordinatorStack) -> None:
    await stack.start()
    workspace_id = await stack.create()
    await stack.until_phase(workspace_id, Phase.RUNNING)
    await stack.reach(workspace_id, DesiredState.ARCHIVED)
    standing = await stack.reach(workspace_id, DesiredState.STANDBY)
    assert standing.archive_key is not None
    epoch = await stack.take_leadership()
    archive = stack.settings.data_dir / "archives" / standing.archive_key

    async def audited() -> str:
        """Return the reason of the archive condition after an audit and the next reconciles."""
        controller = controller_of(stack, epoch)
        await controller.compare_archives_with_store()
        for _ in range(3):
            await controller.reconcile(workspace_id)
        return (await stack.get(workspace_id)).conditions["storage.archive_ready"].reason

    archive.rename(archive.with_name("away"))
    assert await audited() == "Missing"
    archive.with_name("away").rename(archive)
    assert await audited() == "Ready"


async def test_a_leader_that_wakes_up_late_stops_no_container(stack: CoordinatorStack) -> None:
    await stack.start()
    workspace_id = await stack.create()
    await stack.until_phase(workspace_id, Phase.RUNNING)
    await stack.stop()
    async with stack.engine.begin() as conn:
        epoch = await conn.scalar(text("UPDATE leadership SET epoch = epoch + 1 RETURNING epoch - 1"))
        claim = {"operation": "STOPPING", "op_id": "stale", "op_started_at": datetime.now(UTC)}
        await conn.execute(update(workspaces).values(desired_state="STANDBY", **claim))
    with pytest.raises(StaleLeader):
        await controller_of(stack, epoch).reconcile(workspace_id)
    assert (await stack.providers.runtime.status(workspace_id)).running


async def test_a_row_that_is_locked_for_long_is_no_failure_of_its_workspace(stack: CoordinatorStack) -> None:
    """The deletion of an account locks all rows of its user while it runs."""
    workspace_id = await stack.create(DesiredState.STANDBY)
    before, controller = await stack.get(workspace_id), controller_of(stack, await stack.take_leadership())
    async with stack.engine.begin() as conn:
        await conn.execute(select(workspaces.c.id).with_for_update())
        assert await controller.reconcile(workspace_id) == LOCKED_ROW_RETRY
    assert await stack.get(workspace_id) == before
    await controller.reconcile(workspace_id)
    after = await stack.get(workspace_id)
    assert (after.phase, after.error_count) == (Phase.STANDBY, 0)


async def test_a_database_from_a_backup_catches_up_with_the_homes(stack: CoordinatorStack) -> None:
    await stack.start()
    workspace_id = await stack.create(DesiredState.STANDBY)
    await stack.until_phase(workspace_id, Phase.STANDBY)
    archived = await stack.create(DesiredState.ARCHIVED)
    await stack.until_phase(archived, Phase.ARCHIVED)
    await stack.stop()
    for item in (workspace_id, archived):
        (await stack.home(item)).with_name(".fence").write_text("1000\n")
    await stack.start()
    for item in (workspace_id, archived):
        after = await stack.reach(item, DesiredState.RUNNING)
        assert after.error_count == 0
    async with stack.engine.connect() as conn:
        assert await conn.scalar(text("SELECT epoch FROM leadership")) >= 1001


async def test_a_second_coordinator_takes_over_and_the_workspace_lives_on(stack: CoordinatorStack) -> None:
    await stack.start()
    workspace_id = await stack.create()
    await stack.until_phase(workspace_id, Phase.RUNNING)
    before = await stack.providers.runtime.status(workspace_id)
    first = await stack.epoch()

    await stack.start()
    await stack.stop_oldest()
    other = await stack.create()
    await stack.until_phase(other, Phase.RUNNING)  # so the second leader has observed all containers
    assert await stack.epoch() > first

    after = await stack.providers.runtime.status(workspace_id)
    assert after.ready and (after.op_id, after.upstream) == (before.op_id, before.upstream)
    assert (await stack.get(workspace_id)).upstream == before.upstream
    await stack.reach(workspace_id, DesiredState.STANDBY)
    assert (await stack.timeline(workspace_id)).count("claimed: Starting the IDE.") == 1


@pytest.mark.parametrize("phase", [Phase.RUNNING, Phase.ARCHIVED, Phase.ERROR], ids=str)
async def test_a_delete_without_an_archive_removes_the_home_and_all_archives_at_once(
    stack: CoordinatorStack, phase: Phase
) -> None:
    """An ordinary delete of another workspace keeps its archive for the grace period."""
    await stack.start(stack.with_settings(coordinator_idle_interval=0.5))
    workspace_id, other = await stack.create(), await stack.create()
    for name in (workspace_id, other):
        await stack.until_phase(name, Phase.RUNNING)
        await stack.reach(name, DesiredState.ARCHIVED)
    if phase is not Phase.ARCHIVED:
        await stack.reach(workspace_id, DesiredState.RUNNING)
    if phase is Phase.ERROR:
        async with stack.engine.begin() as conn:
            broken = {"error_reason": "RetryExceeded", "error_count": 3}
            await conn.execute(update(workspaces).where(workspaces.c.id == workspace_id).values(**broken))
        await stack.until_phase(workspace_id, Phase.ERROR)
    home = await stack.home(workspace_id)
    async with stack.engine.begin() as conn:
        await gate.delete(conn, other, actor="u1", now=datetime.now(UTC))
        name = (await gate.lock_workspace(conn, workspace_id)).name
        await gate.delete_now(conn, workspace_id, name, actor="u1", now=datetime.now(UTC))

    async def is_gone() -> bool:
        row = await stack.get(workspace_id)
        listed = await stack.providers.archives.list()
        stored = {item.workspace_id for item in listed}
        return row.purged_at is not None and not home.exists() and workspace_id not in stored

    await eventually(is_gone, "the row to be purged, and home and archives to be removed")
    row = await stack.get(workspace_id)
    assert not (await stack.providers.runtime.status(workspace_id)).exists
    assert row.archive_op_id is None or row.operation is Operation.NONE
    kept = await stack.until_phase(other, Phase.DELETED)
    assert kept.purged_at is None and kept.archive_key is not None
    assert other in {item.workspace_id for item in await stack.providers.archives.list()}
