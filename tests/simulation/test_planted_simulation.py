"""Planted bugs, each of which the histories must reveal (ADR 0008).

`make test` runs some of them, chosen by the seed of the run. Three take many histories and run in
`make test-all` only. In `make test`, the model finds two of these, and
`test_parallel_recoveries_never_exceed_the_limit` covers the third.
"""

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
import structlog

from codehub.coordinator import disk_watchdog, ttl_runner
from codehub.coordinator.effect_executor import DiskSpaceShortage, EffectExecutor, EffectFailed
from codehub.coordinator.observer import Observer
from codehub.coordinator.ttl_runner import TtlRunner
from codehub.database import leader_database
from codehub.domain import (
    continue_operation,
    disk,
    gateway_reports,
    gc,
    hung_ide,
    next_effect,
    observed_conditions,
    plan,
    restore_request,
    ttl,
    user_limits,
    volume_leftovers,
)
from codehub.domain.attempt_jobs import current_deletion_job_id, run_job
from codehub.domain.conditions import Condition, updated_condition
from codehub.domain.decision import Context, Decision, record_failure
from codehub.domain.effects import DeleteVolume, Effect
from codehub.domain.error_policy import Failure
from codehub.domain.gateway_reports import ActivityCompleteness, GatewayReport
from codehub.domain.observation import (
    ArchiveFact,
    ContainerFact,
    Generation,
    JobState,
    Observation,
    Skipped,
    Unknown,
)
from codehub.domain.problems import Problem
from codehub.domain.states import ConditionName, DesiredState, ErrorReason, Operation, Phase
from codehub.domain.ttl import TtlDefaults
from codehub.domain.workspace import Workspace
from codehub.gateway.activity_reporter import ActivityReporter
from codehub.storage.errors import StorageProblem
from codehub.storage.jobs.spec import RestoreJob
from tests.simulation import history as histories
from tests.simulation.clock import VirtualLoop
from tests.simulation.database import Database, Gate
from tests.simulation.filling_disk import FillingDisk, FillingInodes
from tests.simulation.gateway import Gateway, SimulatedGatewayRegistry
from tests.simulation.history import History, run
from tests.simulation.jobs import Job, Jobs
from tests.simulation.simulated_backend import SimulatedBackend, SimulatedLeaderDatabase
from tests.simulation.world import Disk, Home, Violation

SEEDS = range(10_000, 10_060)
pytestmark = pytest.mark.sampled(14, "test_planted_")


@pytest.fixture(autouse=True)
def quiet_logs(own_log_configuration: None) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


class UnmarkedHomes(History):
    """Homes without a marker appear everywhere."""

    def _disturb(self) -> None:
        self._create_unmarked_home()


class HangingContainers(History):
    """Containers hang, while their processes continue to write."""

    fault_seconds = 300.0

    def _disturb(self) -> None:
        self._hang_container()

    def _act_as_user(self) -> None:
        names = list(self.world.containers)
        if names and self.chance.random() < 0.7:
            self._write_home(self.chance.choice(names))
        else:
            super()._act_as_user()


class FrequentChanges(History):
    """Users change the desired state all the time."""

    fault_seconds = 300.0

    def _disturb(self) -> None:
        for _ in range(20):
            self._act_as_user()


class HungStarts(History):
    """IDEs hang while they start and while they run. Nothing else fails."""

    fault_seconds = 300.0
    hanging_attempts: tuple[str, ...] = ("-0",)

    def __init__(self, seed: int, loop: VirtualLoop) -> None:
        super().__init__(seed, loop)
        self.faults.rate = 0.0
        self.world.hanging_attempts = self.hanging_attempts

    def _disturb(self) -> None:
        self._hang_container()


class HungTwice(HungStarts):
    """The replacement of a hung IDE may hang as well."""

    hanging_attempts = ("-0", "-1")


def expect_violation(expected: str, history: type[History] = History) -> None:
    """Run histories until one breaks a contract with one of these messages, separated by `|`."""
    for seed in SEEDS:
        try:
            run(seed, history)
        except Violation as violation:
            assert any(message in str(violation) for message in expected.split("|")), violation
            return
    pytest.fail(f"no history of {len(SEEDS)} finds it")


def test_planted_a_volume_deleted_before_archive_key_is_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    original = next_effect._commit_archive_or_run_effect

    def delete_first(
        workspace: Workspace, observation: Observation, effect: Effect, context: Context
    ) -> Decision:
        seen = next_effect.archive_seen(workspace, observation) and workspace.home_ctx is not None
        if not seen or (observation.job is not None and observation.job.state is JobState.RUNNING):
            return original(workspace, observation, effect, context)
        assert workspace.home_ctx is not None
        deletion = DeleteVolume(current_deletion_job_id(workspace), workspace.home_ctx)
        return run_job(workspace, observation.deletion, observation.job_is_ours, deletion, context)

    monkeypatch.setattr(next_effect, "_commit_archive_or_run_effect", delete_first)
    expect_violation("the home is deleted before its archive is safe and committed|DataLost although nothing")


def test_planted_a_restore_taken_as_done_because_a_volume_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    original = continue_operation.is_done

    def is_done_with_any_volume(workspace: Workspace, observation: Observation) -> bool:
        if workspace.operation is Operation.RESTORING:
            return observation.volume is not None and not isinstance(observation.volume, Unknown)
        return original(workspace, observation)

    def volume_exists(workspace: Workspace, observation: Observation, now: datetime) -> Condition:
        exists = observation.volume is not None and not isinstance(observation.volume, Unknown)
        return updated_condition(workspace.conditions, ConditionName.VOLUME_READY, exists, "Exists", "", now)

    monkeypatch.setattr(continue_operation, "is_done", is_done_with_any_volume)
    monkeypatch.setattr(observed_conditions, "_volume_ready", volume_exists)
    expect_violation("shows|although nothing was destroyed", UnmarkedHomes)


@pytest.mark.full
def test_planted_archiving_satisfied_by_an_older_archive(monkeypatch: pytest.MonkeyPatch) -> None:
    async def observe_archive(self: Observer, workspace: Workspace) -> ArchiveFact | Unknown | Skipped | None:
        key = workspace.archive_key
        if key is None or not workspace.operation.makes_archive:
            return await original(self, workspace)
        return await self._providers.archives.find(workspace.id, key.split("/")[1])

    original = Observer._archive
    monkeypatch.setattr(Observer, "_archive", observe_archive)
    for module in (next_effect, continue_operation, observed_conditions):
        monkeypatch.setattr(module, "archive_committed", lambda workspace: workspace.archive_key is not None)
    for module in (next_effect, continue_operation):
        monkeypatch.setattr(
            module, "archive_seen", lambda _, observation: isinstance(observation.archive, ArchiveFact)
        )
    expect_violation("the home is deleted before its archive is safe and committed")


def test_planted_an_error_that_is_cleared_on_the_next_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    original = plan._plan_idle

    def plan_without_errors(workspace: Workspace, observation: Observation, context: Context) -> Decision:
        return original(plan.without_errors(workspace), observation, context)

    monkeypatch.setattr(plan, "_plan_idle", plan_without_errors)
    expect_violation("is cleared although nobody recovered it")


def test_planted_gc_without_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gc, "_grace", lambda *_: timedelta(0))
    expect_violation("is removed before its grace is over")


class Deletions(History):
    """Users delete, delete without an archive, and undelete."""

    def _act_as_user(self) -> None:
        name = self.chance.choice(list(self.database.rows)[:12])
        calls = (self.gate.delete, self.gate.delete_now, self.gate.undelete, self.gate.undelete)
        try:
            self.chance.choice(calls)(name)
        except Problem as problem:
            self.world.record(name, f"is rejected: {problem.code}")


class Restores(History):
    """Users write, stop and archive a few workspaces, and restore archives of them."""

    fault_seconds = 400.0

    def __init__(self, seed: int, loop: VirtualLoop) -> None:
        super().__init__(seed, loop)
        self.settings = self.settings.model_copy(update={"archives_kept": 5})
        self.database.archives_kept = 5

    def _act_as_user(self) -> None:
        name = self.chance.choice(list(self.database.rows)[:12])
        draw = self.chance.random()
        try:
            if draw < 0.4:
                self._write_home(name)
            elif draw < 0.7:
                self.gate.set_desired_state(name, self.chance.choice(histories.DESIRED_STATES))
            elif draw < 0.95:
                self._restore(name)
            elif draw < 0.97:
                self.gate.cancel(name)
            else:
                self._recover(name)
        except Problem as problem:
            self.world.record(name, f"is rejected: {problem.code}")


class EmptyDatabase(History):
    """For most of the time, an empty database replaces the real one."""

    async def _inject_faults(self) -> None:
        await super()._inject_faults()
        self.database.blank = True
        await asyncio.sleep(1200)
        self._check_coordinators()
        self.database.blank = False


def test_an_empty_database_removes_no_archive_and_no_home() -> None:
    run(SEEDS[0], EmptyDatabase)


def test_planted_gc_on_an_empty_database(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (gc, volume_leftovers):
        monkeypatch.setattr(module, "mass_alarm", lambda *_, **__: None)
    expect_violation("is removed before its grace is over|no complete copy|is deleted before", EmptyDatabase)


def planted(
    leader_database: type[SimulatedLeaderDatabase], history: type[History] = History
) -> type[History]:
    backend = type("PlantedBackend", (SimulatedBackend,), {"leader_database": leader_database})
    return type("PlantedHistory", (history,), {"backend": backend})


@pytest.mark.full
def test_planted_a_ttl_that_overwrites_a_newer_request() -> None:
    class DelayedExpiry(SimulatedLeaderDatabase):
        async def ttl_candidates(self, defaults: TtlDefaults, now: datetime) -> list[Workspace]:
            due = await super().ttl_candidates(defaults, now)
            await asyncio.sleep(15)
            return due

        def _expire(self, seen: Workspace, expiry: object) -> bool:
            self._db.apply_expiry(seen, expiry)  # type: ignore[arg-type]
            return True

    expect_violation("a TTL overwrites a newer request", planted(DelayedExpiry, FrequentChanges))


def test_planted_a_claim_without_compare_and_swap() -> None:
    class NoVersionCheck(SimulatedLeaderDatabase):
        def compare(self, before: Workspace) -> None:
            return

    expect_violation(
        "is claimed although|one operation replaces another|overwrites a newer request",
        planted(NoVersionCheck, FrequentChanges),
    )


def test_planted_a_write_without_the_epoch() -> None:
    class NoEpochCheck(SimulatedLeaderDatabase):
        def check_epoch(self) -> None:
            return

    expect_violation("writes in epoch", planted(NoEpochCheck))


def test_planted_activity_removed_from_redis_before_the_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    original = TtlRunner._write_activity

    async def remove_first(self: TtlRunner) -> tuple[datetime, datetime | None]:
        await self._activity.remove(await self._activity.read())
        return await original(self)

    monkeypatch.setattr(TtlRunner, "_write_activity", remove_first)
    expect_violation("activity is forgotten before it was committed")


class RedisAndGatewayFaults(History):
    """Redis rejects writes and loses data repeatedly, and gateways are replaced."""

    fault_seconds = 300.0

    def _disturb(self) -> None:
        draw = self.chance.random()
        if draw < 0.25:
            self._replace_gateway()
        elif draw < 0.5:
            self._lose_redis()
        elif draw < 0.55:
            self._close_all_gateways()
        else:
            self.world.down["flush"] = self.loop.time() + self.chance.expovariate(1 / 20)

    def _act_as_user(self) -> None:
        running = [row.id for row in self.database.rows.values() if row.phase is Phase.RUNNING]
        if running and self.chance.random() < 0.5:
            self._write_home(self.chance.choice(running))
        else:
            super()._act_as_user()


class RedisDataLoss(RedisAndGatewayFaults):
    """Redis accepts every flush and loses it. The gateways stay."""

    def _disturb(self) -> None:
        self._lose_redis()


class GatewayOutages(RedisAndGatewayFaults):
    """All gateways are down for a while, repeatedly."""

    def _disturb(self) -> None:
        if self.open_gateways() and self.chance.random() < 0.1:
            self._close_all_gateways()


class GracefulGatewayOutages(GatewayOutages):
    """All gateways are down for a while, repeatedly, after they were stopped in good order."""

    def _close_gateway(self, gateway: Gateway) -> None:
        gateway.end()


@pytest.mark.parametrize(
    "history", [RedisAndGatewayFaults, RedisDataLoss, GatewayOutages, GracefulGatewayOutages]
)
def test_lost_flushes_and_gateway_outages_stop_no_workspace(history: type[History]) -> None:
    for seed in SEEDS[:3]:
        run(seed, history)


def test_planted_reports_that_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_reports, "known_until", lambda _silences, now, _longest: now)
    expect_violation("is stopped while in use|before its user could come back", RedisAndGatewayFaults)


def test_planted_lost_gateways_whose_activity_counts_as_known(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoClockRestart(SimulatedLeaderDatabase):
        async def reset_idle_time(self, now: datetime) -> None:
            return

    monkeypatch.setattr(histories, "LOST_AFTER", 20)
    expect_violation(
        "is stopped while in use|before its user could come back",
        planted(NoClockRestart, RedisAndGatewayFaults),
    )


def test_planted_a_flush_that_is_not_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    original = ActivityReporter._forget
    monkeypatch.setattr(ActivityReporter, "_forget", lambda self, _carried: original(self, self._flushes))
    expect_violation("is stopped while in use", RedisDataLoss)


def test_planted_a_redis_that_loses_a_flush_unnoticed(monkeypatch: pytest.MonkeyPatch) -> None:
    original = gateway_reports.check_activity_complete

    def assess_without_flushes(
        reports: Mapping[str, GatewayReport], _flushes: object, *rest: object
    ) -> ActivityCompleteness:
        return original(reports, {name: report.flushes for name, report in reports.items()}, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(ttl_runner, "check_activity_complete", assess_without_flushes)
    expect_violation("is stopped while in use", RedisDataLoss)


def test_planted_a_first_gateway_that_restarts_no_idle_time() -> None:
    class NoFirstClockRestart(SimulatedGatewayRegistry):
        def _register(self, gateway_id: str) -> None:
            before = dict(self._db.rows)
            super()._register(gateway_id)
            self._db.rows = before

    class FaultyGateway(Gateway):
        registry = NoFirstClockRestart

    expect_violation(
        "before its user could come back",
        type("Planted", (GracefulGatewayOutages,), {"gateway": FaultyGateway}),
    )


def test_planted_a_stopped_gateway_that_is_removed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    original = gateway_reports.check_activity_complete

    def assess_running_only(reports: Mapping[str, GatewayReport], *rest: object) -> ActivityCompleteness:
        staying = {name: report for name, report in reports.items() if not report.ended}
        found = original(staying, *rest)  # type: ignore[arg-type]
        return replace(found, gone=found.gone | (reports.keys() - staying.keys()))

    monkeypatch.setattr(ttl_runner, "check_activity_complete", assess_running_only)
    expect_violation("before its user could come back", GracefulGatewayOutages)


def test_planted_an_idle_time_that_starts_with_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ttl, "_idle_since", lambda workspace: workspace.last_access_at)
    expect_violation("is stopped as soon as it runs", FrequentChanges)


class ParallelRecoveries(History):
    """The runtime fails for a while, repeatedly.

    Then users recover all failed workspaces at once.
    """

    fault_seconds = 300.0

    def _disturb(self) -> None:
        self.world.down["runtime"] = self.loop.time() + self.chance.uniform(20, 80)

    def _act_as_user(self) -> None:
        for row in list(self.database.rows.values()):
            with contextlib.suppress(Problem):
                if row.phase is Phase.ERROR:
                    self._recover(row.id)
                else:
                    self.gate.set_desired_state(row.id, DesiredState.RUNNING)


def test_parallel_recoveries_keep_the_limits() -> None:
    for seed in SEEDS[:2]:
        run(seed, ParallelRecoveries)


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_planted_recoveries_that_do_not_count_until_they_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    original = user_limits.counts_as_running
    monkeypatch.setattr(user_limits, "counts_as_running", lambda row: original(replace(row, request=None)))
    expect_violation("workspaces are to run, but", ParallelRecoveries)


class FullTrash(History):
    """Very many workspaces were deleted at once, and their retention is over."""

    fault_seconds = 10.0

    async def run(self) -> histories.Outcome:
        deleted_at = self.loop.utc_now() - self.retention - histories.PURGED_WITHIN
        for number in range(300):
            name = f"old{number:03}"
            self.database.create(name, 1000 + number, DesiredState.ARCHIVED)
            self.database.rows[name] = replace(
                self.database.rows[name],
                desired_state=DesiredState.DELETED,
                deleted_at=deleted_at,
                phase=Phase.DELETED,
            )
        return await super().run()


def test_a_large_purge_ends() -> None:
    run(SEEDS[0], FullTrash)


def test_planted_a_purge_in_one_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader_database, "PURGED_AT_ONCE", 1_000_000)
    monkeypatch.setattr(histories, "SETTLE_WITHIN", 2000.0)
    expect_violation("does not settle", FullTrash)


def test_planted_a_delete_that_skips_the_archive(monkeypatch: pytest.MonkeyPatch) -> None:
    original = next_effect._archive_home

    def skip(workspace: Workspace, observation: Observation, context: Context) -> Decision:
        if workspace.deleted_at is None or workspace.home_ctx is None:
            return original(workspace, observation, context)
        deletion = DeleteVolume(current_deletion_job_id(workspace), workspace.home_ctx)
        return run_job(workspace, observation.deletion, observation.job_is_ours, deletion, context)

    monkeypatch.setattr(next_effect, "_archive_home", skip)
    expect_violation("the home is deleted before its archive is safe and committed|DataLost although nothing")


def test_planted_an_unobservable_store_read_as_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def observe_archive(self: Observer, workspace: Workspace) -> ArchiveFact | Unknown | Skipped | None:
        seen = await original(self, workspace)
        return None if isinstance(seen, Unknown) else seen

    original = Observer._archive
    monkeypatch.setattr(Observer, "_archive", observe_archive)
    expect_violation("DataLost although nothing was destroyed")


def test_planted_an_archive_op_id_reused_after_a_success(monkeypatch: pytest.MonkeyPatch) -> None:
    original = plan._claim

    def claim_with_old_archive_op_id(
        workspace: Workspace, operation: Operation, context: Context
    ) -> Decision:
        kept = workspace.archive_op_id or context.archive_op_id
        return original(workspace, operation, replace(context, archive_op_id=kept))

    monkeypatch.setattr(plan, "_claim", claim_with_old_archive_op_id)
    expect_violation("is used again")


class UnlockedJobs(Jobs):
    """Jobs that take no lock, and swap a home in without a check."""

    async def _lock(self, job: Job, disk: Disk) -> None:
        return

    def kill(self, job_id: str) -> None:
        job = self.all.get(job_id)
        if job is not None and job.state is JobState.RUNNING:
            job.state = JobState.GONE

    async def _restore(self, job: Job, disk: Disk, spec: RestoreJob) -> None:
        item = self.world.store.get(spec.archive_key)
        if item is None:
            raise StorageProblem
        disk.siblings[f".staging-{spec.op_id}"] = Home(item.content)
        await self._step(job)
        disk.home = None
        generation = Generation(spec.op_id, spec.archive_key)
        if f".staging-{spec.op_id}" not in disk.siblings:
            raise StorageProblem("GC removed the staging directory, because nothing was locked.")
        await self._swap_in(job, disk, f".staging-{spec.op_id}", generation)

    async def _swap_in(self, job: Job, disk: Disk, staging: str, generation: Generation) -> None:
        staged = disk.siblings[staging]
        try:
            await super()._swap_in(job, disk, staging, generation)
        except KeyError:
            disk.home = staged
            self.world.changed(job.spec.workspace_id)


def test_planted_a_late_job_swapping_in_an_old_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(histories, "Jobs", UnlockedJobs)
    expect_violation(
        "no complete copy|shows|is deleted before|although nothing was destroyed|is written again"
    )


def test_planted_archiving_under_a_hung_container(monkeypatch: pytest.MonkeyPatch) -> None:
    def container_exists(workspace: Workspace, observation: Observation, now: datetime) -> Condition:
        answers = isinstance(observation.container, ContainerFact) and observation.container.ready
        return updated_condition(
            workspace.conditions, ConditionName.CONTAINER_EXISTS, answers, "Answers", "", now
        )

    async def do_not_check(self: EffectExecutor, workspace: Workspace, of: object = None) -> None:
        return

    monkeypatch.setattr(observed_conditions, "_container_exists", container_exists)
    monkeypatch.setattr(EffectExecutor, "_require_no_container", do_not_check)
    expect_violation("no complete copy|is deleted before|shows", HangingContainers)


@pytest.mark.parametrize("history", [HungStarts, HungTwice])
def test_an_ide_that_hangs_is_replaced_once_and_not_too_early(history: type[History]) -> None:
    run(SEEDS[0], history)


def test_planted_a_slow_start_that_counts_as_hung(monkeypatch: pytest.MonkeyPatch) -> None:
    long = timedelta(days=1)
    monkeypatch.setattr(hung_ide, "_silent_since", lambda workspace, observation: observation.at - long)
    expect_violation("is replaced within its time", HungStarts)


def test_planted_a_hung_ide_replaced_repeatedly(monkeypatch: pytest.MonkeyPatch) -> None:
    def replace_own(workspace: Workspace, message: str, context: Context) -> Decision:
        return record_failure(workspace, Failure(ErrorReason.ActionFailed, message), context)

    monkeypatch.setattr(hung_ide, "_replace_own_ide", replace_own)
    expect_violation("is replaced again and again", HungTwice)


def test_planted_a_hung_ide_that_is_never_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(next_effect, "replace_if_hung", lambda *_: None)
    expect_violation("its hung IDE was not replaced", HungStarts)


def test_a_filling_disk_stops_the_largest_and_never_the_database() -> None:
    for seed in SEEDS[:2]:
        run(seed, FillingDisk)


def test_homes_with_too_many_files_are_stopped_before_the_inodes_are_used_up() -> None:
    run(SEEDS[0], FillingInodes)


def test_planted_a_watchdog_that_checks_only_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    def bytes_alone(free: disk.FreeSpace, reserve: disk.Reserve) -> tuple[disk.Shortage, ...]:
        return disk.shortages(disk.FreeSpace(free.bytes), reserve)

    monkeypatch.setattr(disk_watchdog, "shortages", bytes_alone)
    expect_violation("the disk is full|no workspace is stopped", FillingInodes)


def test_planted_a_watchdog_that_does_not_act(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_watchdog, "choose_disk_actions", lambda *_: disk.DiskActions())
    expect_violation("the disk is full|no workspace is stopped", FillingDisk)


def test_planted_a_watchdog_that_stops_the_smallest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "_largest_first", lambda home: (home.size, home.workspace_id))
    monkeypatch.setattr(disk, "size_limit_under_shortage", lambda *_: 0)
    expect_violation("an even share is|has next to nothing", FillingDisk)


def test_planted_a_stop_without_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    original = disk.choose_disk_actions

    def choose_as_if_warned(
        state: object, homes: list[disk.RunningHome], rules: object, now: datetime
    ) -> disk.DiskActions:
        long_ago = now - timedelta(days=1)
        return original(state, [replace(home, warned_at=long_ago) for home in homes], rules, now)  # type: ignore[arg-type]

    monkeypatch.setattr(disk_watchdog, "choose_disk_actions", choose_as_if_warned)
    expect_violation("without a warning", FillingDisk)


def test_planted_a_full_disk_counted_as_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    original = EffectExecutor._check_disk

    async def check_disk_as_error(self: EffectExecutor) -> None:
        try:
            await original(self)
        except DiskSpaceShortage as reason:
            raise EffectFailed(ErrorReason.ActionFailed, str(reason)) from reason

    monkeypatch.setattr(EffectExecutor, "_check_disk", check_disk_as_error)
    expect_violation("a full disk counts as an error", FillingDisk)


def test_planted_an_undelete_that_keeps_the_waived_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next, ordinary delete would then skip the archive and the grace period."""
    monkeypatch.setattr(Gate, "waiver_after_undelete", lambda _self, row: row.grace_waived_at)
    expect_violation("is purged in its grace period", Deletions)


def test_planted_a_waived_grace_that_counts_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Database.purgeable

    def purgeable_if_any_waived(self: Database, deleted_before: datetime | None) -> list[Workspace]:
        waived = any(row.grace_waived_at is not None for row in self.rows.values())
        return original(self, self.now() if waived else deleted_before)

    monkeypatch.setattr(Database, "purgeable", purgeable_if_any_waived)
    expect_violation("is purged in its grace period", Deletions)


def test_workspaces_are_deleted_without_an_archive() -> None:
    run(SEEDS[0], Deletions)


def test_archives_are_restored_while_everything_fails() -> None:
    run(SEEDS[0], Restores)


def test_planted_a_restore_that_is_carried_out_before_the_home_is_archived(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def restore(workspace: Workspace, observation: Observation, context: Context) -> Decision:
        chosen = restore_request.replace_archive(workspace)
        return replace(chosen, after=replace(chosen.after, home_ctx=None))

    monkeypatch.setattr(plan, "_restore_chosen", restore)
    expect_violation("a restore replaces the home before its archive is safe", Restores)


def test_planted_a_restore_that_deletes_the_volume_before_the_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    original = next_effect._archive_home

    def archive(workspace: Workspace, observation: Observation, context: Context) -> Decision:
        committed = workspace.archive_to_restore is None or workspace.home_ctx is None
        if committed or not next_effect.archive_seen(workspace, observation):
            return original(workspace, observation, context)
        assert workspace.home_ctx is not None
        deletion = DeleteVolume(current_deletion_job_id(workspace), workspace.home_ctx)
        return run_job(workspace, observation.deletion, observation.job_is_ours, deletion, context)

    monkeypatch.setattr(next_effect, "_archive_home", archive)
    expect_violation("is deleted before its archive is safe|although nothing was destroyed", Restores)


@pytest.mark.full
def test_planted_gc_of_the_newest_archives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gc, "_newest", lambda holder, present, count: [])
    expect_violation("one of the newest archives", Restores)
