"""Planted bugs: each breaks its contract, and nothing breaks without them (ADR 0008)."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from types import ModuleType
from typing import Any

import pytest

from codehub.domain import (
    attempt_jobs,
    continue_operation,
    gc,
    hung_ide,
    next_effect,
    observed_conditions,
    plan,
    restore_request,
    ttl,
    volume_leftovers,
)
from codehub.domain.awake import FOREVER, NO_HOLDS
from codehub.domain.decision import Decision, record_failure, without_errors
from codehub.domain.effects import DeleteVolume
from codehub.domain.error_policy import Failure
from codehub.domain.observation import ArchiveFact, VolumeFact
from codehub.domain.states import DesiredState, ErrorReason, Operation
from tests.simulation.model import controller, runners, storage, user_actions
from tests.simulation.model.convergence import settles
from tests.simulation.model.row_conversion import LONG_AGO
from tests.simulation.model.scenarios import (
    ARCHIVED,
    RUNNING,
    STANDBY,
    TWO_ARCHIVES,
    Scenario,
    initial_state,
    model,
)
from tests.simulation.model.search import explore
from tests.simulation.model.state_parts import (
    Activity,
    Arc,
    Disk,
    Gc,
    Generation,
    Leader,
    Op,
    Record,
    Row,
    Store,
    Stored,
    TtlSnapshot,
)

Patch = tuple[ModuleType | type, str, Any]


@dataclass(frozen=True)
class PlantedBug:
    """A planted bug: its patches, a scenario that shows it, and the contract that it breaks."""

    name: str
    contract: str
    scenario: Scenario
    patches: Callable[[], list[Patch]] = field(repr=False)


def _volume_first() -> list[Patch]:
    real = next_effect._archive_home

    def archive(workspace: Any, observed: Any, context: Any) -> Decision:
        if not next_effect.archive_seen(workspace, observed):
            return real(workspace, observed, context)
        deletion = DeleteVolume(attempt_jobs.current_deletion_job_id(workspace), workspace.home_ctx)
        return attempt_jobs.run_job(workspace, observed.deletion, observed.job_is_ours, deletion, context)

    return [(next_effect, "_archive_home", archive)]


def _restore_done_with_any_volume() -> list[Patch]:
    real = continue_operation.is_done

    def is_done(workspace: Any, observed: Any) -> bool:
        restoring = workspace.operation is Operation.RESTORING
        return isinstance(observed.volume, VolumeFact) if restoring else real(workspace, observed)

    return [(continue_operation, "is_done", is_done)]


def _archiving_done_with_any_archive() -> list[Patch]:
    def committed(workspace: Any) -> bool:
        return workspace.archive_key is not None

    def seen(workspace: Any, observed: Any) -> bool:
        return isinstance(observed.archive, ArchiveFact)

    return [
        *(
            (module, "archive_committed", committed)
            for module in (next_effect, continue_operation, observed_conditions)
        ),
        *((module, "archive_seen", seen) for module in (next_effect, continue_operation)),
        (controller, "observed_archive", lambda row: row.archive_key),
    ]


def _error_is_forgotten() -> list[Patch]:
    def in_error(workspace: Any, observed: Any, context: Any) -> Decision:
        return Decision("Trying again.", without_errors(workspace))

    return [(plan, "_plan_in_error", in_error)]


def _no_grace() -> list[Patch]:
    return [(gc, "_grace", lambda item, holders, rules: timedelta(0))]


def _no_alarm() -> list[Patch]:
    def mass_alarm(suspicious: int, total: int, what: str, *, known: int) -> None:
        return None

    return [(gc, "mass_alarm", mass_alarm), (volume_leftovers, "mass_alarm", mass_alarm)]


def _ttl_without_condition() -> list[Patch]:
    return [(runners, "nothing_has_changed", lambda seen, row, activity: True)]


def _no_compare_and_swap() -> list[Patch]:
    def outdated(me: str, leader: Leader, before: Row) -> Leader:
        if leader.at in controller.OBSERVING and leader.row is None:
            return leader._replace(row=before)
        return leader

    return [(controller, "outdated", outdated)]


def _no_epoch() -> list[Patch]:
    return [(controller, "epoch_is_refused", lambda me: False)]


def _activity_removed_first() -> list[Patch]:
    return [(runners, "carrying", lambda: (runners.remove, runners.commit))]


def _idle_starts_with_the_request() -> list[Patch]:
    return [(ttl, "_idle_since", lambda workspace: workspace.last_access_at)]


def _silent_gateways_count_as_idle() -> list[Patch]:
    return [(ttl, "known_until", lambda _silences, now, _longest: now)]


def _activity_read_before_heartbeats() -> list[Patch]:
    return [(runners, "reading", lambda: (runners.read_activity, runners.read_heartbeats))]


def _delete_without_archive() -> list[Patch]:
    real = next_effect._archive_home

    def archive(workspace: Any, observed: Any, context: Any) -> Decision:
        if workspace.deleted_at is None:
            return real(workspace, observed, context)
        deletion = DeleteVolume(attempt_jobs.current_deletion_job_id(workspace), workspace.home_ctx)
        return attempt_jobs.run_job(workspace, observed.deletion, observed.job_is_ours, deletion, context)

    return [(next_effect, "_archive_home", archive)]


def _unobservable_is_gone() -> list[Patch]:
    return [(controller, "archive_fact", lambda fact: None if fact == "unknown" else fact)]


def _archive_op_id_reused() -> list[Patch]:
    real = plan._claim

    def claim(workspace: Any, operation: Any, context: Any) -> Decision:
        used = workspace.archive_op_id or context.archive_op_id
        return real(workspace, operation, replace(context, archive_op_id=used))

    return [(plan, "_claim", claim)]


def _late_job_swaps_in() -> list[Patch]:
    return [
        (storage, "disk_refuses", lambda epoch, disk: False),
        (storage, "volume_fact", lambda disk: None),
    ]


def _grace_waived_for_every_purge() -> list[Patch]:
    purged = property(lambda holder: holder.purged_at is not None)
    return [(gc.ArchiveHolder, "skips_grace", purged)]


def _waiver_survives_undelete() -> list[Patch]:
    """An undelete keeps the waiver of an earlier delete, so that it counts for the next delete."""
    return [(user_actions, "WAIVER_AFTER_UNDELETE", True)]


def _restore_without_an_archive_of_the_present_home() -> list[Patch]:
    """A request to restore is carried out before the present home is archived."""

    def restore(workspace: Any, observed: Any, context: Any) -> Decision:
        chosen = restore_request.replace_archive(workspace)
        return replace(chosen, after=replace(chosen.after, home_ctx=None))

    return [(plan, "_restore_chosen", restore)]


def _restore_removes_the_home_beside_a_missing_archive() -> list[Patch]:
    return [(next_effect, "wait_or_drop", lambda workspace, observed: None)]


def _restore_keeps_nothing() -> list[Patch]:
    real = restore_request.replace_archive
    return [(plan, "replace_archive", lambda workspace: replace(real(workspace), keep_archives=False))]


def _gc_ignores_requests() -> list[Patch]:
    return [(runners, "requested_archive", lambda row: None)]


def _gc_keeps_no_newest() -> list[Patch]:
    return [(gc, "_newest", lambda holder, present, count: [])]


def _hung_counts_as_none() -> list[Patch]:
    real = controller.container_fact

    def fact(container: Any) -> Any:
        return None if container is not None and container.state == "hung" else real(container)

    return [(controller, "container_fact", fact)]


def _slow_counts_as_hung() -> list[Patch]:
    return [(hung_ide, "_silent_since", lambda workspace, observed: LONG_AGO)]


def _hung_replaced_repeatedly() -> list[Patch]:
    def replace_own(workspace: Any, message: str, context: Any) -> Decision:
        return record_failure(workspace, Failure(ErrorReason.ActionFailed, message), context)

    return [(hung_ide, "_replace_own_ide", replace_own)]


def _holds_are_not_read() -> list[Patch]:
    return [(runners, "holds_of", lambda activity: NO_HOLDS)]


def _cpu_use_is_not_read() -> list[Patch]:
    real = runners.holds_of
    return [(runners, "holds_of", lambda activity: real(activity._replace(cpu=False)))]


def _holds_are_not_compared() -> list[Patch]:
    real = runners.nothing_has_changed

    def nothing_has_changed(seen: TtlSnapshot, row: Row, activity: Activity) -> bool:
        return real(seen._replace(held=activity.held), row, activity)

    return [(runners, "nothing_has_changed", nothing_has_changed)]


def _ttl_counts_from_the_last_use() -> list[Patch]:
    def busy_until(workspace: Any, awake: Any) -> Any:
        return max(ttl._idle_since(workspace), awake.until)

    return [(ttl, "busy_until", busy_until)]


def _no_limit() -> list[Patch]:
    return [(ttl, "awake_limit", lambda workspace, defaults: FOREVER)]


FOREIGN_HOME = {
    **ARCHIVED,
    "disk": Disk(b"a", Generation(Op(1), Arc(1)), fence=1),
    "row": ARCHIVED["row"]._replace(archive_op=Arc(2), archive_key=Arc(2), desired=DesiredState.STANDBY),
    "store": Store(
        (Stored(Arc(1), b"a", True), Stored(Arc(2), b"ab", True)), (Record(Arc(1)), Record(Arc(2)))
    ),
}
COPY = "at least one complete copy of the home exists"
DELETES = "archive_key is committed, and no container exists, before a volume is deleted"
HALF = "an IDE has half of its start timeout"
PROTECTED = "GC never removes a protected archive"
ONCE = "an operation replaces its own IDE once"

PLANTED_BUGS = [
    PlantedBug("volume_deleted_before_archive_key_is_committed", DELETES, Scenario(
        "archive", {"request": 1}, values=STANDBY), _volume_first),
    PlantedBug("restore_taken_as_done_because_a_volume_exists", "a restored home has every byte", Scenario(
        "foreign home", {}, values=FOREIGN_HOME), _restore_done_with_any_volume),
    PlantedBug("archiving_satisfied_by_an_older_archive", DELETES, Scenario(
        "archive", {"request": 1}, values=STANDBY), _archiving_done_with_any_archive),
    PlantedBug("error_forgotten_on_the_next_tick", "ERROR stays until someone recovers it", Scenario(
        "timeout", {"request": 1, "trouble": 1, "timeout": 1}, values=STANDBY), _error_is_forgotten),
    PlantedBug("gc_without_grace", "GC removes only what was an orphan for its grace", Scenario(
        "gc", {"request": 1, "gc": 1}, values=STANDBY), _no_grace),
    PlantedBug("gc_on_an_empty_database", "GC never removes a protected archive", Scenario(
        "empty_database gc", {"gc": 2, "time": 1, "empty_database": 1}, values=ARCHIVED), _no_alarm),
    PlantedBug("ttl_overwriting_a_newer_request", "a TTL never overwrites a newer request", Scenario(
        "ttl", {"request": 1, "ttl": 1, "time": 1}, values=STANDBY), _ttl_without_condition),
    PlantedBug("claim_without_compare_and_swap", "an operation leads to the desired state", Scenario(
        "request while deciding", {"request": 2}, values=STANDBY), _no_compare_and_swap),
    PlantedBug("write_without_the_epoch", "a leader that resumes late writes nothing", Scenario(
        "hang", {"request": 1, "trouble": 1, "hang": 1}, values=STANDBY), _no_epoch),
    PlantedBug("activity_removed_from_redis_before_the_commit", "no activity is lost", Scenario(
        "activity", {"use": 1, "ttl": 1}, values=RUNNING), _activity_removed_first),
    PlantedBug("slow_start_stopped_by_the_ttl", "the idle time starts at RUNNING", Scenario(
        "slow start", {"request": 1, "ttl": 1, "time": 1}, values=STANDBY), _idle_starts_with_the_request),
    PlantedBug("idle_although_a_gateway_is_silent", "nothing expires while a gateway is silent", Scenario(
        "silence", {"ttl": 1, "time": 1}, values=RUNNING), _silent_gateways_count_as_idle),
    PlantedBug("activity_read_before_the_heartbeats", "a use that was reported keeps a workspace", Scenario(
        "late report", {"use": 1, "ttl": 1, "time": 1}, values=RUNNING), _activity_read_before_heartbeats),
    PlantedBug("delete_that_skips_the_archive", DELETES, Scenario(
        "delete", {"request": 1}, values=STANDBY), _delete_without_archive),
    PlantedBug("unobservable_store_read_as_gone", "a fact that cannot be observed never reads as gone",
        Scenario(
            "store down", {"request": 1, "trouble": 3, "unseen": 3}, values=ARCHIVED), _unobservable_is_gone),
    PlantedBug("archive_op_id_reused_after_a_success", "a claim takes a new archive_op_id", Scenario(
        "archive", {"request": 1}, values=STANDBY), _archive_op_id_reused),
    PlantedBug("late_job_swapping_in_an_old_home", COPY, Scenario("late job", {
        "request": 1, "write": 1, "trouble": 1, "hang": 1}, values=ARCHIVED), _late_job_swaps_in),
    PlantedBug("grace_waived_for_everyone", "GC removes only what was an orphan for its grace", Scenario(
        "purge", {"request": 1, "gc": 2, "time": 2}, values=STANDBY), _grace_waived_for_every_purge),
    PlantedBug("grace_waived_by_an_earlier_delete", "a grace period is waived by the delete", Scenario(
        "undelete", {"request": 2}, values=STANDBY), _waiver_survives_undelete),
    PlantedBug("restore_consumed_before_the_archive", "only an operation that removes a home", Scenario(
        "restore", {"restore": 1}, values=TWO_ARCHIVES), _restore_without_an_archive_of_the_present_home),
    PlantedBug("restore_that_deletes_the_volume_first", DELETES, Scenario(
        "restore", {"restore": 1}, values=TWO_ARCHIVES), _volume_first),
    PlantedBug("restore_beside_a_missing_archive", "a home is removed for a restore only while", Scenario(
        "restore", {"restore": 1, "trouble": 1, "outside": 1}, values=TWO_ARCHIVES),
        _restore_removes_the_home_beside_a_missing_archive),
    PlantedBug("restore_that_keeps_nothing", "what a restore leaves behind is kept", Scenario(
        "restore", {"restore": 1}, values=TWO_ARCHIVES), _restore_keeps_nothing),
    PlantedBug("gc_of_an_archive_about_to_be_restored", PROTECTED, Scenario(
        "gc", {"restore": 1, "gc": 1}, values={**TWO_ARCHIVES, "gc": Gc(orphans=((Arc(1), 1),))}),
        _gc_ignores_requests),
    PlantedBug("gc_of_the_newest_archives", PROTECTED, Scenario(
        "gc", {"gc": 2, "time": 2}, values=TWO_ARCHIVES), _gc_keeps_no_newest),
    PlantedBug("archiving_under_a_hung_container", "an archive is never taken under a container", Scenario(
        "hung container", {"request": 1, "trouble": 1, "die": 1}, values=RUNNING), _hung_counts_as_none),
    PlantedBug("slow_start_taken_for_a_hung_one", HALF, Scenario(
        "start", {"request": 1}, values=STANDBY), _slow_counts_as_hung),
    PlantedBug("hung_ide_replaced_again_and_again", ONCE, Scenario(
        "hung", {"request": 1, "trouble": 2, "timeout": 2}, values=STANDBY), _hung_replaced_repeatedly),
    PlantedBug("commands_and_leases_hold_nothing", "a command, lease or CPU use keeps", Scenario(
        "holds", {"hold": 1, "ttl": 1, "time": 1}, values=RUNNING), _holds_are_not_read),
    PlantedBug("cpu_use_that_holds_nothing", "a command, lease or CPU use keeps", Scenario(
        "cpu", {"hold": 1, "ttl": 1, "time": 1}, values=RUNNING), _cpu_use_is_not_read),
    PlantedBug("hold_that_begins_while_a_ttl_fires", "a command, lease or CPU use that", Scenario(
        "late hold", {"hold": 1, "ttl": 1, "time": 1}, values=RUNNING), _holds_are_not_compared),
    PlantedBug("stopped_as_soon_as_a_hold_ends", "the TTL counts from the end of the last hold", Scenario(
        "end of a hold", {"hold": 1, "ttl": 1, "time": 1}, values=RUNNING), _ttl_counts_from_the_last_use),
    PlantedBug("programs_without_a_limit", "programs keep a workspace running no longer", Scenario(
        "limit", {"hold": 1, "ttl": 1, "time": 1}, values=RUNNING), _no_limit),
]  # fmt: skip
NAMES = [bug.name for bug in PLANTED_BUGS]


def _explored(scenario: Scenario) -> Any:
    made = model(scenario)
    return explore(made, initial_state(made, scenario), violations=10)


@pytest.mark.parametrize("planted_bug", PLANTED_BUGS, ids=NAMES)
def test_planted_bug_is_found(planted_bug: PlantedBug, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, bug in planted_bug.patches():
        monkeypatch.setattr(module, name, bug)
    found = _explored(planted_bug.scenario)
    assert found.violations, f"{found.states} states, and nothing was broken"
    reports = "\n\n".join(violation.report() for violation in found.violations)
    assert any(violation.contract.startswith(planted_bug.contract) for violation in found.violations), reports


def test_planted_forgotten_request_never_converges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "next_operation", lambda workspace: Operation.NONE)
    assert _settled({"request": 1}).startswith(
        "it converges to its desired state: STANDBY where RUNNING is desired"
    )


def test_planted_attempt_without_a_new_job_ends_in_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a new job per attempt, one failed job counts three times and ends in ERROR."""
    monkeypatch.setattr(attempt_jobs, "job_id", lambda op_id, number: f"{op_id}-0")
    assert "ERROR (RetryExceeded)" in _settled({"request": 1, "trouble": 1, "fault": 1})


def test_planted_ide_that_is_never_replaced_ends_in_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(next_effect, "replace_if_hung", lambda *_: None)
    assert "ERROR (Timeout)" in _settled({"request": 1, "trouble": 1, "die": 1}, RUNNING)


def test_control_converges_without_the_planted_bugs() -> None:
    assert _settled({"request": 1, "trouble": 1, "fault": 1}) == ""
    assert _settled({"request": 1, "trouble": 1, "die": 1}, RUNNING) == ""
    assert _settled({"request": 1, "trouble": 1, "timeout": 1}) == ""


def _settled(budget: dict[str, int], values: dict[str, Any] = STANDBY) -> str:
    """Return what is wrong with convergence from any state, or an empty string."""
    scenario = Scenario("convergence", budget, values=values)
    made = model(scenario)
    found = explore(made, initial_state(made, scenario), sample=1, settle=settles)
    return found.violations[0].contract if found.violations else ""


@pytest.mark.parametrize("planted_bug", PLANTED_BUGS, ids=NAMES)
def test_control_without_the_planted_bug(planted_bug: PlantedBug) -> None:
    found = _explored(planted_bug.scenario)
    assert not found.violations, found.violations[0].report()
    assert found.complete
