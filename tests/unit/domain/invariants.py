"""Invariants of every decision. Each function names one rule of the specification."""

from collections.abc import Callable
from dataclasses import fields

from codehub.domain.archive_keys import archive_key
from codehub.domain.decision import Decision, TimelineEvent
from codehub.domain.effects import (
    ArchiveEmpty,
    ArchiveHome,
    DeleteContainer,
    DeleteVolume,
    Provision,
    RestoreHome,
    SetHomeAside,
    StartContainer,
)
from codehub.domain.observation import (
    ArchiveFact,
    ContainerFact,
    JobFact,
    JobState,
    Observation,
    Skipped,
    Unknown,
    VolumeFact,
)
from codehub.domain.observed_conditions import VANISHED
from codehub.domain.states import DesiredState, ErrorReason, Operation, Phase
from codehub.domain.workspace import RequestKind, Workspace
from tests.unit.domain import oracle
from tests.unit.domain.builders import (
    ARCHIVE,
    EXISTS,
    FRESH_ARCHIVE_OP,
    FRESH_OP,
    HEALTHY,
    NOW,
    READY,
    VOLUME,
)

Rule = Callable[[Workspace, Observation, Decision], bool]
RULES: list[Rule] = []

NONE = Operation.NONE
LOSS = (ErrorReason.DataLost, ErrorReason.ContainerWithoutVolume)
CONTROLLER_COLUMNS = {
    "conditions", "observed_at", "phase", "phase_changed_at", "operation", "op_id", "op_started_at",
    "progress", "progress_at", "archive_op_id", "archive_key", "upstream", "error_count", "error_reason",
    "error_message", "next_retry_at", "started_at", "home_ctx",
}  # fmt: skip
OTHER_COLUMNS = tuple(field.name for field in fields(Workspace) if field.name not in CONTROLLER_COLUMNS)


def rule(check: Rule) -> Rule:
    RULES.append(check)
    return check


def broken_rules(before: Workspace, observation: Observation, decision: Decision) -> list[str]:
    return [check.__name__ for check in RULES if not check(before, observation, decision)]


def is_running(job: JobFact | None) -> bool:
    return job is not None and job.state is JobState.RUNNING


def committed(workspace: Workspace) -> bool:
    op_id = workspace.archive_op_id
    return op_id is not None and workspace.archive_key == archive_key(workspace.id, op_id)


def claims(before: Workspace, decision: Decision) -> bool:
    return before.operation is NONE and decision.after.operation is not NONE


def ends(before: Workspace, decision: Decision) -> bool:
    return before.operation is not NONE and decision.after.operation is NONE


def container_is_gone(observation: Observation) -> bool:
    return observation.container is None or (
        isinstance(observation.container, ContainerFact) and not observation.container.exists
    )


def is_recovery(before: Workspace, decision: Decision) -> bool:
    return decision.event is TimelineEvent.RECOVERED and before.request is not None


def is_restore(before: Workspace, decision: Decision) -> bool:
    """Return whether the decision makes the archive of a request to restore the workspace's archive."""
    return decision.event is TimelineEvent.CHOSEN and before.archive_to_restore is not None


def chosen_is_seen(before: Workspace, observation: Observation) -> bool:
    chosen = observation.chosen
    return isinstance(chosen, ArchiveFact) and chosen.archive_op_id == before.archive_to_restore


@rule
def the_phase_follows_from_the_conditions(
    before: Workspace, observation: Observation, decision: Decision
) -> bool:
    after = decision.after
    return after.phase == oracle.phase(after.conditions, after.deleted_at is not None, after.error_reason)


@rule
def error_has_no_operation(before: Workspace, observation: Observation, decision: Decision) -> bool:
    return decision.after.phase is not Phase.ERROR or decision.after.operation is NONE


@rule
def phase_time_moves_with_the_phase(before: Workspace, observation: Observation, decision: Decision) -> bool:
    moved = decision.after.phase is not before.phase
    return decision.after.phase_changed_at == (NOW if moved else before.phase_changed_at)


@rule
def observed_at_moves_with_a_condition(
    before: Workspace, observation: Observation, decision: Decision
) -> bool:
    if is_recovery(before, decision):
        return True
    moved = decision.after.conditions != before.conditions
    return decision.after.observed_at == (observation.at if moved else before.observed_at)


@rule
def only_columns_of_the_controller_change(
    before: Workspace, observation: Observation, decision: Decision
) -> bool:
    old, new = before.__dict__, decision.after.__dict__
    return all(old[name] is new[name] for name in OTHER_COLUMNS)


@rule
def a_decision_has_a_sentence(before: Workspace, observation: Observation, decision: Decision) -> bool:
    return bool(decision.sentence.strip())


@rule
def one_operation_at_a_time(before: Workspace, observation: Observation, decision: Decision) -> bool:
    """It is claimed from NONE or ends in NONE. Meanwhile it keeps its op_id and its start time."""
    after = decision.after
    if (after.operation is NONE) != (after.op_id is None) or (after.op_id is None) != (
        after.op_started_at is None
    ):
        return False
    if before.operation is NONE or after.operation is NONE:
        return True
    return (before.operation, before.op_id, before.op_started_at, before.archive_op_id) == (
        after.operation, after.op_id, after.op_started_at, after.archive_op_id
    )  # fmt: skip


@rule
def a_claim_is_fresh_and_comes_before_any_effect(
    before: Workspace, observation: Observation, decision: Decision
) -> bool:
    after = decision.after
    if not claims(before, decision):
        return after.archive_op_id == before.archive_op_id and decision.event is not TimelineEvent.CLAIMED
    archive_op_id = FRESH_ARCHIVE_OP if after.operation.makes_archive else before.archive_op_id
    return (
        decision.event is TimelineEvent.CLAIMED
        and decision.effect is None
        and (after.op_id, after.op_started_at, after.archive_op_id) == (FRESH_OP, NOW, archive_op_id)
    )


@rule
def effects_belong_to_a_committed_claim(
    before: Workspace, observation: Observation, decision: Decision
) -> bool:
    """Or, without an operation, to a waiting recovery, because the owner's choice is committed too.

    In ERROR the only effect is to remove a container.
    """
    if decision.effect is None or isinstance(decision.effect, SetHomeAside):
        return True
    if isinstance(decision.effect, DeleteContainer) and before.operation is NONE:
        return before.error_reason in oracle.TERMINAL and before.request is None
    return before.operation is not NONE and decision.after.operation is not NONE


@rule
def a_container_that_may_hold_the_last_copy_stays(
    before: Workspace, observation: Observation, decision: Decision
) -> bool:
    """This is about ERROR. The effects of an operation follow from the owner's request."""
    removed = isinstance(decision.effect, DeleteContainer) and before.operation is NONE
    runs = isinstance(observation.container, ContainerFact) and observation.container.running
    home_is_seen = isinstance(observation.volume, VolumeFact) and observation.volume.generation is not None
    return not (removed and runs) or home_is_seen


@rule
def a_home_is_set_aside_only_when_its_owner_chose_another(
    before: Workspace, observation: Observation, decision: Decision
) -> bool:
    if not isinstance(decision.effect, SetHomeAside):
        return True
    chosen = before.request is not None and before.request.source is not None
    seen = (
        isinstance(observation.volume, VolumeFact)
        and observation.volume.generation == decision.effect.generation
    )
    foreign = decision.effect.generation != before.home_ctx
    return chosen and seen and foreign and before.operation is NONE and not decision.consume


@rule
def an_operation_ends_with_an_event(before: Workspace, observation: Observation, decision: Decision) -> bool:
    if not ends(before, decision):
        return decision.event not in (TimelineEvent.FINISHED, TimelineEvent.CANCELLED)
    return decision.event in (
        TimelineEvent.FINISHED,
        TimelineEvent.CANCELLED,
        TimelineEvent.DROPPED,
        TimelineEvent.ERROR,
        TimelineEvent.FAILED,
    )


@rule
def nothing_ends_while_its_job_runs(before: Workspace, observation: Observation, decision: Decision) -> bool:
    alive = is_running(observation.job) or is_running(observation.deletion)
    return not (alive and ends(before, decision))


@rule
def no_job_beside_a_running_one(before: Workspace, observation: Observation, decision: Decision) -> bool:
    starts = isinstance(decision.effect, ArchiveHome | ArchiveEmpty | RestoreHome | DeleteVolume)
    return not (starts and (is_running(observation.job) or is_running(observation.deletion)))


@rule
def an_attempt_is_not_counted_while_its_job_runs(
    before: Workspace, observation: Observation, decision: Decision
) -> bool:
    """The job's id contains the count: an early change would lose a running job."""
    alive = is_running(observation.job) or is_running(observation.deletion)
    return not (alive and decision.after.error_count != before.error_count)


@rule
def a_volume_is_deleted_after_its_archive_and_container(
    before: Workspace, observation: Observation, decision: Decision
) -> bool:
    if not isinstance(decision.effect, DeleteVolume):
        return True
    seen = (
        isinstance(observation.archive, ArchiveFact)
        and observation.archive.archive_op_id == before.archive_op_id
    )
    there = isinstance(observation.volume, VolumeFact)
    return (
        before.operation is Operation.ARCHIVING
        and committed(before)
        and seen
        and there
        and container_is_gone(observation)
        and decision.effect.generation == before.home_ctx
    )


@rule
def a_home_is_archived_without_its_container(
    before: Workspace, observation: Observation, decision: Decision
) -> bool:
    if not isinstance(decision.effect, ArchiveHome):
        return True
    effect = decision.effect
    named = (effect.generation, effect.archive_op_id) == (before.home_ctx, before.archive_op_id)
    return container_is_gone(observation) and named and isinstance(observation.volume, VolumeFact)


@rule
def a_start_names_a_home_that_was_seen(
    before: Workspace, observation: Observation, decision: Decision
) -> bool:
    if not isinstance(decision.effect, StartContainer):
        return True
    seen = isinstance(observation.volume, VolumeFact) and observation.volume.generation == before.home_ctx
    return before.home_ctx is not None and decision.effect.generation == before.home_ctx and seen


@rule
def an_empty_home_is_for_a_new_workspace(
    before: Workspace, observation: Observation, decision: Decision
) -> bool:
    is_new = before.home_ctx is None and before.archive_key is None
    if claims(before, decision) and decision.after.operation is Operation.PROVISIONING:
        return is_new and oracle.level(decision.after.conditions) == "PENDING"
    if isinstance(decision.effect, Provision):
        return is_new and decision.effect.generation.op_id == before.op_id
    return True


@rule
def a_restore_is_for_a_workspace_without_a_home(
    before: Workspace, observation: Observation, decision: Decision
) -> bool:
    if claims(before, decision) and decision.after.operation is Operation.RESTORING:
        return before.home_ctx is None and before.archive_key is not None
    if isinstance(decision.effect, RestoreHome):
        effect = decision.effect
        return before.home_ctx is None and (effect.op_id, effect.archive_key) == (
            before.op_id,
            before.archive_key,
        )
    return True


@rule
def unknown_keeps_its_last_value(before: Workspace, observation: Observation, decision: Decision) -> bool:
    old, new = before.conditions, decision.after.conditions
    kept = True
    if isinstance(observation.volume, Unknown):
        kept = kept and old[VOLUME].status == new[VOLUME].status
    if isinstance(observation.archive, Unknown | Skipped) and not decision.keep_archives:
        kept = kept and old[ARCHIVE].status == new[ARCHIVE].status
    if isinstance(observation.container, Unknown):
        kept = kept and all(old[name].status == new[name].status for name in (EXISTS, READY))
    return kept


@rule
def unknown_starts_nothing(before: Workspace, observation: Observation, decision: Decision) -> bool:
    unknown = isinstance(observation.container, Unknown) or isinstance(observation.volume, Unknown)
    container_known = not isinstance(observation.container, Unknown)
    stops_deleted = (
        container_known
        and before.error_reason in oracle.TERMINAL
        and decision.after.operation is Operation.STOPPING
    )
    return not (unknown and claims(before, decision)) or stops_deleted


@rule
def a_home_is_lost_only_after_two_observations_that_found_none(
    before: Workspace, observation: Observation, decision: Decision
) -> bool:
    newly_lost = decision.after.error_reason in LOSS and before.error_reason not in LOSS
    if not newly_lost or before.home_ctx is None:
        return True
    missing_before = not before.conditions[VOLUME].status or before.conditions[VOLUME].reason == VANISHED
    right = isinstance(observation.volume, VolumeFact) and observation.volume.generation == before.home_ctx
    return missing_before and not isinstance(observation.volume, Unknown) and not right


@rule
def a_home_that_two_observations_did_not_find_is_lost(
    before: Workspace, observation: Observation, decision: Decision
) -> bool:
    """Unless CodeHub removes it, or a recovery or an earlier ERROR comes first."""
    right = isinstance(observation.volume, VolumeFact) and observation.volume.generation == before.home_ctx
    missing_before = before.conditions[VOLUME].reason in (VANISHED, "Missing")
    vanished = (
        missing_before
        and not right
        and not isinstance(observation.volume, Unknown)
        and before.home_ctx is not None
    )
    removed = before.operation is Operation.ARCHIVING and committed(before)
    excused = (
        removed
        or before.error_reason in oracle.TERMINAL
        or (before.request is not None and before.operation is NONE)
        or is_running(observation.job)
        or is_running(observation.deletion)
    )
    return not vanished or excused or decision.after.error_reason in LOSS


@rule
def a_terminal_error_stays_until_a_recovery(
    before: Workspace, observation: Observation, decision: Decision
) -> bool:
    if before.error_reason not in oracle.TERMINAL or is_recovery(before, decision):
        return True
    same = ("error_reason", "error_count", "error_message")
    return all(getattr(before, name) == getattr(decision.after, name) for name in same)


@rule
def error_only_removes_the_container_of_a_deleted_workspace(
    before: Workspace, observation: Observation, decision: Decision
) -> bool:
    if before.error_reason not in oracle.TERMINAL or not claims(before, decision):
        return True
    return before.deleted_at is not None and decision.after.operation is Operation.STOPPING


@rule
def errors_are_counted_one_by_one(before: Workspace, observation: Observation, decision: Decision) -> bool:
    old, new = before.error_count, decision.after.error_count
    if decision.event in (TimelineEvent.FAILED, TimelineEvent.ERROR, TimelineEvent.LOST):
        return new in (old, old + 1)
    if decision.event in (
        TimelineEvent.FINISHED,
        TimelineEvent.CANCELLED,
        TimelineEvent.RECOVERED,
        TimelineEvent.DROPPED,
    ):
        return new in (old, 0)
    return new == old


@rule
def a_third_failure_ends_in_error(before: Workspace, observation: Observation, decision: Decision) -> bool:
    after = decision.after
    if after.error_count < 3 or before.error_reason in oracle.TERMINAL:
        return True
    return after.error_reason in oracle.TERMINAL and after.operation is NONE


@rule
def a_cancel_loses_nothing(before: Workspace, observation: Observation, decision: Decision) -> bool:
    if decision.event is not TimelineEvent.CANCELLED:
        return True
    after = decision.after
    waits_to_restore = before.desired_state is DesiredState.STANDBY and observation.deletion is None
    return (
        before.deleted_at is None
        and not (before.operation is Operation.ARCHIVING and committed(before) and not waits_to_restore)
        and (after.error_count, after.error_reason) == (0, None)
        and (after.home_ctx, after.archive_key) == (before.home_ctx, before.archive_key)
        and decision.desired == oracle.level(after.conditions)
        and decision.consume
    )


@rule
def only_a_cancel_or_a_restore_changes_the_desired_state(
    before: Workspace, observation: Observation, decision: Decision
) -> bool:
    cancel = before.request is not None and before.request.kind is RequestKind.CANCEL
    if decision.desired is None:
        return True
    if is_restore(before, decision):
        return decision.desired is DesiredState.STANDBY
    return cancel and before.deleted_at is None and decision.desired is not DesiredState.DELETED


@rule
def a_request_is_consumed_once_and_only_if_there(
    before: Workspace, observation: Observation, decision: Decision
) -> bool:
    return not decision.consume or before.request is not None


@rule
def an_archive_key_is_committed_only_for_its_own_claim(
    before: Workspace, observation: Observation, decision: Decision
) -> bool:
    after = decision.after
    seen = (
        isinstance(observation.archive, ArchiveFact)
        and observation.archive.archive_op_id == before.archive_op_id
    )
    if is_restore(before, decision):
        return True
    if after.archive_key == before.archive_key or is_recovery(before, decision):
        losses = (ErrorReason.DataLost, ErrorReason.ContainerWithoutVolume)
        lost = after.error_reason in losses and seen and not is_running(observation.job)
        return decision.archive is None or (lost and decision.archive == observation.archive)
    makes = before.operation.makes_archive and after.operation is before.operation
    return (
        makes
        and seen
        and committed(after)
        and decision.archive == observation.archive
        and not is_running(observation.job)
    )


@rule
def a_chosen_archive_replaces_the_archive_of_the_home_only_where_both_are_complete(
    before: Workspace, observation: Observation, decision: Decision
) -> bool:
    if decision.event is not TimelineEvent.CHOSEN:
        return True
    after = decision.after
    return (
        is_restore(before, decision)
        and chosen_is_seen(before, observation)
        and oracle.level(after.conditions) == "ARCHIVED"
        and (before.operation, after.operation) == (NONE, NONE)
        and before.home_ctx is None
        and after.archive_key == archive_key(before.id, before.archive_to_restore or "")
        and (decision.keep_archives, decision.consume) == (True, True)
    )


@rule
def a_home_is_removed_for_a_restore_only_while_the_chosen_archive_is_seen(
    before: Workspace, observation: Observation, decision: Decision
) -> bool:
    if before.archive_to_restore is None or not isinstance(decision.effect, DeleteVolume):
        return True
    return chosen_is_seen(before, observation) or observation.deletion is not None


@rule
def a_dropped_restore_loses_nothing(before: Workspace, observation: Observation, decision: Decision) -> bool:
    if decision.event is not TimelineEvent.DROPPED:
        return True
    after = decision.after
    return (
        before.archive_to_restore is not None
        and decision.consume
        and (decision.desired, decision.effect) == (None, None)
        and (after.home_ctx, after.archive_key) == (before.home_ctx, before.archive_key)
        and not is_running(observation.job)
        and not is_running(observation.deletion)
    )


@rule
def a_home_is_adopted_and_given_up_only_by_permitted_operations(
    before: Workspace, observation: Observation, decision: Decision
) -> bool:
    after = decision.after
    if after.home_ctx == before.home_ctx or is_recovery(before, decision):
        return True
    if before.operation in (Operation.PROVISIONING, Operation.RESTORING):
        marker = isinstance(observation.volume, VolumeFact) and observation.volume.generation
        finished = decision.event is TimelineEvent.FINISHED
        return (
            finished
            and after.home_ctx == marker
            and marker is not False
            and after.home_ctx.op_id == before.op_id
        )
    gone = not isinstance(observation.volume, Unknown) and not decision.after.conditions[VOLUME].status
    return before.operation is Operation.ARCHIVING and committed(before) and gone and ends(before, decision)


@rule
def archiving_is_done_only_by_its_own_archive(
    before: Workspace, observation: Observation, decision: Decision
) -> bool:
    if before.operation is not Operation.ARCHIVING or decision.event is not TimelineEvent.FINISHED:
        return True
    seen = (
        isinstance(observation.archive, ArchiveFact)
        and observation.archive.archive_op_id == before.archive_op_id
    )
    return seen and committed(before) and observation.volume is None


@rule
def a_home_is_done_only_by_its_own_marker(
    before: Workspace, observation: Observation, decision: Decision
) -> bool:
    if before.operation not in (Operation.PROVISIONING, Operation.RESTORING):
        return True
    if decision.event is not TimelineEvent.FINISHED:
        return True
    generation = observation.volume.generation if isinstance(observation.volume, VolumeFact) else None
    return generation is not None and generation.op_id == before.op_id


@rule
def healthy_turns_false_only_without_an_operation(
    before: Workspace, observation: Observation, decision: Decision
) -> bool:
    turned = before.conditions[HEALTHY].status and not decision.after.conditions[HEALTHY].status
    return not turned or before.operation is NONE


@rule
def the_upstream_is_known_only_while_ready(
    before: Workspace, observation: Observation, decision: Decision
) -> bool:
    return decision.after.upstream is None or decision.after.conditions[READY].status
