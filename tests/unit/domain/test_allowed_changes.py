"""Every request in every state: accepted, or rejected with a code."""

from collections.abc import Callable
from itertools import product

import pytest

from codehub.domain import allowed_changes, problems
from codehub.domain.allowed_changes import RecoveryOption
from codehub.domain.observation import Generation
from codehub.domain.problems import Problem
from codehub.domain.states import DesiredState, ErrorReason, Operation, Phase
from codehub.domain.workspace import RecoverSource, Workspace
from tests.unit.domain import oracle
from tests.unit.domain.builders import (
    ARCHIVE_OP,
    CANCEL,
    EARLIER,
    HOME,
    KEY,
    NOW,
    OLD_ARCHIVE_OP,
    OLD_KEY,
    RECOVER,
    RESTORE_OLD,
    conditions,
    workspace,
)

CODES = {
    "UNAUTHORIZED": 401,
    "FORBIDDEN": 403,
    "PASSWORD_REQUIRED": 403,
    "WORKSPACE_NOT_FOUND": 404,
    "NOT_FOUND": 404,
    "OPERATION_IN_PROGRESS": 409,
    "INVALID_STATE": 409,
    "VALIDATION_ERROR": 422,
    "RUNNING_LIMIT_EXCEEDED": 429,
    "GONE": 410,
    "RANGE_NOT_SATISFIABLE": 416,
    "WAKE_TIMEOUT": 504,
    "FILE_CONFLICT": 409,
    "PRECONDITION_FAILED": 412,
    "UPSTREAM_UNAVAILABLE": 502,
    "WORKSPACE_FAILED": 502,
    "WORKSPACE_STALLED": 504,
    "WORKSPACE_LIMIT_EXCEEDED": 429,
    "TOO_MANY_REQUESTS": 429,
    "INSUFFICIENT_STORAGE": 507,
    "ARCHIVE_LIMIT_EXCEEDED": 429,
    "ARCHIVE_NOT_FOUND": 404,
    "ARCHIVE_DAMAGED": 502,
    "ARCHIVE_STORE_UNAVAILABLE": 503,
}
ERRORS = (None, *ErrorReason)
REQUESTS = (None, RECOVER, CANCEL, RESTORE_OLD)


def outcome(call: Callable[[], object]) -> object:
    """Return the value of the call, or the code of its Problem."""
    try:
        return call()
    except Problem as problem:
        assert problem.status == CODES[problem.code]
        assert problem.message
        return problem.code


def states() -> list[Workspace]:
    """Return every combination of the columns that the checks depend on."""
    found = []
    for desired, operation, error, request, healthy in product(
        DesiredState, Operation, ERRORS, REQUESTS, (True, False)
    ):
        seen = conditions(volume=True, healthy=healthy)
        phase = Phase(oracle.phase(seen, desired is DesiredState.DELETED, error))
        if phase is Phase.ERROR and operation is not Operation.NONE:
            continue
        found.append(
            workspace(
                desired_state=desired,
                operation=operation,
                error_reason=error,
                request=request,
                conditions=seen,
                phase=phase,
                home_ctx=HOME,
            )
        )
    return found


STATES = states()


@pytest.mark.parametrize("desired", DesiredState)
def test_a_change_of_the_desired_state(desired: DesiredState) -> None:
    for item in STATES:
        if item.deleted_at is not None:
            expected: object = "WORKSPACE_NOT_FOUND"
        elif desired in (DesiredState.DELETED, DesiredState.PENDING):
            expected = "VALIDATION_ERROR"
        elif item.desired_state is desired:
            expected = False
        elif item.operation is not Operation.NONE or item.request is not None:
            expected = "OPERATION_IN_PROGRESS"
        elif item.phase is Phase.ERROR:
            expected = "INVALID_STATE"
        else:
            expected = True
        assert outcome(lambda item=item: allowed_changes.check_desired_state(item, desired)) == expected


def test_a_delete() -> None:
    """ERROR does not prevent it."""
    for item in STATES:
        if item.deleted_at is not None:
            expected = "WORKSPACE_NOT_FOUND"
        else:
            expected = None if item.operation is Operation.NONE else "OPERATION_IN_PROGRESS"
        assert outcome(lambda item=item: allowed_changes.check_delete(item)) == expected


def test_a_cancel() -> None:
    cancellable = {Operation.PROVISIONING, Operation.RESTORING, Operation.STARTING, Operation.ARCHIVING}
    for item in STATES:
        if item.deleted_at is not None:
            expected = "WORKSPACE_NOT_FOUND"
        else:
            pending = item.request == RESTORE_OLD
            expected = None if item.operation in cancellable or pending else "INVALID_STATE"
        assert outcome(lambda item=item: allowed_changes.check_cancel(item)) == expected


@pytest.mark.parametrize("operation", Operation)
@pytest.mark.parametrize("key", [None, OLD_KEY, KEY])
def test_only_an_archive_that_is_not_committed_can_be_cancelled(
    operation: Operation, key: str | None
) -> None:
    item = workspace(operation=operation, archive_key=key, archive_op_id=ARCHIVE_OP)
    refused = outcome(lambda: allowed_changes.check_cancel(item)) == "INVALID_STATE"
    too_late = operation is Operation.ARCHIVING and key == KEY
    never = operation in (
        Operation.NONE, Operation.STOPPING, Operation.CREATE_EMPTY_ARCHIVE, Operation.DELETING
    )  # fmt: skip
    assert refused == (too_late or never)


def test_an_archive_that_prepares_a_restore_can_be_cancelled_after_its_commit() -> None:
    for request in (RESTORE_OLD, CANCEL):
        item = workspace(
            operation=Operation.ARCHIVING, archive_key=KEY, archive_op_id=ARCHIVE_OP, request=request,
            desired_state=DesiredState.STANDBY,
        )  # fmt: skip
        assert outcome(lambda item=item: allowed_changes.check_cancel(item)) is None


@pytest.mark.parametrize("archive_op_id", [OLD_ARCHIVE_OP, ARCHIVE_OP])
def test_a_restore(archive_op_id: str) -> None:
    for base, phase in product(STATES, Phase):
        item = workspace(**{**base.__dict__, "phase": phase})
        if item.deleted_at is not None:
            expected: object = "WORKSPACE_NOT_FOUND"
        elif item.request == RESTORE_OLD and archive_op_id == OLD_ARCHIVE_OP:
            expected = False
        elif item.operation is not Operation.NONE or item.request is not None:
            expected = "OPERATION_IN_PROGRESS"
        else:
            at_rest = phase in ("STANDBY", "ARCHIVED") and item.desired_state.value == phase.value
            expected = True if at_rest and item.error_reason not in oracle.TERMINAL else "INVALID_STATE"
        assert outcome(lambda item=item: allowed_changes.check_restore(item, archive_op_id)) == expected, item


def test_an_undelete() -> None:
    levels = ((True, True, True), (True, True, False), (False, True, False), (False, False, False))
    for base, purged, (volume, archive, ready) in product(STATES, (None, NOW), levels):
        seen = conditions(volume, archive, ready, ready)
        item = workspace(**{**base.__dict__, "purged_at": purged, "conditions": seen})
        if item.deleted_at is None:
            expected: object = "INVALID_STATE"
        elif purged is not None:
            expected = "WORKSPACE_NOT_FOUND"
        elif item.operation is not Operation.NONE:
            expected = "OPERATION_IN_PROGRESS"
        else:
            expected = DesiredState(oracle.level(item.conditions))
        assert outcome(lambda item=item: allowed_changes.check_undelete(item)) == expected


@pytest.mark.parametrize("source", [None, *RecoverSource])
@pytest.mark.parametrize("archive_op_id", [None, OLD_ARCHIVE_OP])
def test_a_recover(source: RecoverSource | None, archive_op_id: str | None) -> None:
    lost = (ErrorReason.DataLost, ErrorReason.ContainerWithoutVolume)
    for base, home, volume, archive in product(STATES, (None, HOME), (True, False), (True, False)):
        item = workspace(**{**base.__dict__, "home_ctx": home, "conditions": conditions(volume, archive)})
        expected_is_there = volume if home else archive
        if item.deleted_at is not None:
            expected = "WORKSPACE_NOT_FOUND"
        elif item.operation is not Operation.NONE:
            expected = "OPERATION_IN_PROGRESS"
        elif item.phase is not Phase.ERROR and item.error_reason not in oracle.TERMINAL:
            expected = "INVALID_STATE"
        elif item.request is not None:
            expected = "OPERATION_IN_PROGRESS"
        else:
            incomplete = (source is RecoverSource.ARCHIVE) != (archive_op_id is not None)
            must_choose = source is None and item.error_reason in lost and not (expected_is_there or volume)
            would_replace = source is not None and volume
            expected = "VALIDATION_ERROR" if incomplete or must_choose or would_replace else None
        found = outcome(lambda item=item: allowed_changes.check_recover(item, source, archive_op_id))
        assert found == expected, item


def test_every_error_has_a_recovery_option_and_each_option_is_accepted() -> None:
    choices = {
        RecoveryOption.LOOK_AGAIN: (None, None),
        RecoveryOption.HOME: (None, None),
        RecoveryOption.ARCHIVE: (RecoverSource.ARCHIVE, OLD_ARCHIVE_OP),
        RecoveryOption.EMPTY: (RecoverSource.EMPTY, None),
    }
    for base, home, volume, archive in product(STATES, (None, HOME), (True, False), (True, False)):
        item = workspace(**{**base.__dict__, "home_ctx": home, "conditions": conditions(volume, archive)})
        options = allowed_changes.recovery_options(item)
        accepted = {
            source
            for source in choices.values()
            if outcome(lambda item=item, source=source: allowed_changes.check_recover(item, *source)) is None
        }
        assert {choices[option] for option in options} == accepted, item
        stuck = item.phase is Phase.ERROR and item.deleted_at is None and item.request is None
        assert bool(options) or not (stuck and item.operation is Operation.NONE), item


@pytest.mark.parametrize(
    ("reason", "home", "volume", "expected"),
    [
        (ErrorReason.ContainerWithoutVolume, HOME, False, (RecoveryOption.ARCHIVE, RecoveryOption.EMPTY)),
        (ErrorReason.DataLost, HOME, False, (RecoveryOption.ARCHIVE, RecoveryOption.EMPTY)),
        (ErrorReason.DataLost, HOME, True, (RecoveryOption.HOME,)),
        (
            ErrorReason.ArchiveCorrupted,
            None,
            False,
            (RecoveryOption.LOOK_AGAIN, RecoveryOption.ARCHIVE, RecoveryOption.EMPTY),
        ),
        (
            ErrorReason.RetryExceeded,
            None,
            False,
            (RecoveryOption.LOOK_AGAIN, RecoveryOption.ARCHIVE, RecoveryOption.EMPTY),
        ),
        (ErrorReason.RetryExceeded, HOME, True, (RecoveryOption.LOOK_AGAIN,)),
    ],
    ids=["container without volume", "lost", "come back", "spoiled archive", "foreign home", "crash loop"],
)
def test_the_recovery_options_of_each_error(
    reason: ErrorReason, home: Generation | None, volume: bool, expected: tuple[RecoveryOption, ...]
) -> None:
    item = workspace(
        phase=Phase.ERROR, error_reason=reason, home_ctx=home, conditions=conditions(volume, False)
    )
    assert allowed_changes.recovery_options(item) == expected


@pytest.mark.parametrize("key", [None, OLD_KEY, KEY])
@pytest.mark.parametrize("archive_op_id", [None, OLD_ARCHIVE_OP, ARCHIVE_OP])
def test_an_archive_is_committed_for_its_own_claim(key: str | None, archive_op_id: str | None) -> None:
    item = workspace(archive_key=key, archive_op_id=archive_op_id)
    assert allowed_changes.archive_committed(item) == (
        (key, archive_op_id) in ((KEY, ARCHIVE_OP), (OLD_KEY, OLD_ARCHIVE_OP))
    )


def test_each_problem_has_a_code_and_a_message() -> None:
    found = {kind.code: kind for kind in Problem.__subclasses__()}
    assert {code: kind.status for code, kind in found.items()} == CODES
    for kind in found.values():
        assert kind().message == kind.default_message != ""
        assert kind("Another message.", retry_after=3).message == "Another message."
        assert kind(retry_after=3).retry_after == 3
    assert issubclass(problems.WorkspaceNotFound, Problem)


def test_a_deleted_workspace_is_not_found() -> None:
    allowed_changes.check_alive(workspace())
    assert (
        outcome(lambda: allowed_changes.check_alive(workspace(deleted_at=EARLIER))) == "WORKSPACE_NOT_FOUND"
    )
