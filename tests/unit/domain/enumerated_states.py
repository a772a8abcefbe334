"""Enumeration of the states in which a decision can be made, reduced to what can make a difference.

The known condition and the new observation are enumerated in pairs, because the former matters only
for some of the latter (an Unknown keeps it, a missing home existed before or did not). Each pair of
container, volume and archive is combined with every other, with every desired state, request and
error, and, under an operation, with every state of its jobs.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from itertools import product
from typing import Any

from codehub.domain.conditions import Condition
from codehub.domain.observation import (
    SKIPPED,
    ArchiveFact,
    ContainerFact,
    Generation,
    JobFact,
    JobState,
    Observation,
    Skipped,
    Unknown,
    VolumeFact,
)
from codehub.domain.observed_conditions import VANISHED
from codehub.domain.states import DesiredState, ErrorReason, Operation, Phase
from codehub.domain.workspace import PendingRequest, Workspace
from tests.unit.domain import oracle
from tests.unit.domain.builders import (
    CANCEL,
    CLAIMED_AT,
    EXITED_CONTAINER,
    FOREIGN_OP,
    HOME,
    KEY,
    LOOKED_AT,
    NO,
    NOW,
    OLD_ARCHIVE_OP,
    OLD_KEY,
    OP,
    READY_CONTAINER,
    RECOVER,
    RECOVER_ARCHIVE,
    RECOVER_EMPTY,
    RESTORE_OLD,
    STARTING_CONTAINER,
    UNKNOWN,
    YES,
    archive,
    condition,
    conditions,
    job,
    observation,
    volume,
    workspace,
)

World = tuple[Workspace, Observation]


@dataclass(frozen=True)
class ContainerCase:
    seen: ContainerFact | Unknown | None
    exists: Condition
    ready: Condition


@dataclass(frozen=True)
class VolumeCase:
    seen: VolumeFact | Unknown | None
    known: Condition
    home: Generation | None


@dataclass(frozen=True)
class ArchiveCase:
    seen: ArchiveFact | Unknown | Skipped | None
    known: Condition
    key: str | None


GONE_ONCE = condition(True, VANISHED)
MISSING = condition(False, "Missing")

ABSENT = ContainerCase(None, NO, NO)
EXITED = ContainerCase(EXITED_CONTAINER, YES, YES)
CONTAINERS = (
    ContainerCase(UNKNOWN, NO, NO),
    ContainerCase(UNKNOWN, YES, NO),
    ContainerCase(UNKNOWN, YES, YES),
    ContainerCase(None, YES, YES),
    EXITED,
    ContainerCase(STARTING_CONTAINER, YES, NO),
    ContainerCase(READY_CONTAINER, YES, NO),
)

NEVER_THERE = tuple(VolumeCase(seen, NO, None) for seen in (UNKNOWN, None, volume(None), volume(FOREIGN_OP)))
THERE = VolumeCase(volume(), YES, HOME)
HOMES = (
    THERE,
    VolumeCase(volume(), GONE_ONCE, HOME),
    VolumeCase(UNKNOWN, YES, HOME),
    VolumeCase(UNKNOWN, GONE_ONCE, HOME),
    VolumeCase(UNKNOWN, MISSING, HOME),
    VolumeCase(None, YES, HOME),
    VolumeCase(None, GONE_ONCE, HOME),
    VolumeCase(None, MISSING, HOME),
    VolumeCase(volume(None), GONE_ONCE, HOME),
    VolumeCase(volume(FOREIGN_OP), GONE_ONCE, HOME),
)

HOMES_TO_ARCHIVE = (THERE, HOMES[2], *HOMES[5:8], HOMES[9])

OLDER = archive(OLD_ARCHIVE_OP)
ARCHIVES = (
    ArchiveCase(SKIPPED, NO, None),
    ArchiveCase(None, NO, None),
    ArchiveCase(SKIPPED, YES, KEY),
    ArchiveCase(SKIPPED, MISSING, KEY),
    ArchiveCase(UNKNOWN, YES, KEY),
    ArchiveCase(UNKNOWN, NO, KEY),
    ArchiveCase(None, YES, KEY),
    ArchiveCase(None, GONE_ONCE, KEY),
    ArchiveCase(archive(), NO, KEY),
    ArchiveCase(OLDER, YES, KEY),
)
KNOWN_ARCHIVES = (ARCHIVES[0], ARCHIVES[2], ARCHIVES[5], ARCHIVES[7])

ERRORS: tuple[tuple[ErrorReason | None, int], ...] = (
    (None, 0),
    (ErrorReason.ActionFailed, 1),
    (ErrorReason.DataLost, 1),
    (ErrorReason.RetryExceeded, 3),
)
JOBS: tuple[JobFact | None, ...] = (None, *(job(state) for state in JobState))
TIMED_OUT = NOW - timedelta(hours=2)


def _world(
    seen: tuple[ContainerCase, VolumeCase, ArchiveCase],
    *,
    jobs: tuple[JobFact | None, JobFact | None] = (None, None),
    at: datetime = LOOKED_AT,
    chosen: ArchiveFact | Unknown | Skipped | None = SKIPPED,
    **given: Any,
) -> World:
    container, home, stored = seen
    statuses = (home.known.status, stored.known.status, container.exists.status, container.ready.status)
    deleted = given["desired_state"] is DesiredState.DELETED
    fields = {
        "conditions": conditions(home.known, stored.known, container.exists, container.ready),
        "home_ctx": home.home,
        "archive_key": stored.key,
        "phase": _phase(statuses, deleted, given["error_reason"]),
    } | given
    facts = (container.seen, home.seen, stored.seen)
    return workspace(**fields), observation(*facts, job=jobs[0], deletion=jobs[1], at=at, chosen=chosen)


@cache
def _phase(statuses: tuple[bool, bool, bool, bool], deleted: bool, error: ErrorReason | None) -> Phase:
    return Phase(oracle.phase(conditions(*statuses), deleted, error))


def without_operation() -> Iterator[World]:
    """Yield states without an operation or a request."""
    everything = product(CONTAINERS, (*NEVER_THERE, *HOMES), ARCHIVES)
    for seen, desired, (reason, count) in product(list(everything), DesiredState, ERRORS):
        yield _world(seen, desired_state=desired, error_reason=reason, error_count=count)


def with_requests() -> Iterator[World]:
    """Yield states without an operation, with a request to recover or to cancel."""
    requests: tuple[PendingRequest, ...] = (CANCEL, RECOVER, RECOVER_ARCHIVE, RECOVER_EMPTY)
    states = (DesiredState.RUNNING, DesiredState.PENDING, DesiredState.DELETED)
    everything = product(
        (CONTAINERS[0], CONTAINERS[3], CONTAINERS[4]), (*NEVER_THERE, *HOMES), KNOWN_ARCHIVES
    )
    for seen, desired, request, (reason, count) in product(list(everything), states, requests, ERRORS):
        yield _world(seen, desired_state=desired, request=request, error_reason=reason, error_count=count)


CHOSEN = (SKIPPED, UNKNOWN, None, archive(OLD_ARCHIVE_OP))


def with_requests_to_restore() -> Iterator[World]:
    """Yield states with a pending restore: without an operation, and while the home is archived."""
    states = (DesiredState.STANDBY, DesiredState.ARCHIVED)
    everything = product((CONTAINERS[0], ABSENT, EXITED), (*NEVER_THERE, *HOMES), KNOWN_ARCHIVES)
    for seen, desired, chosen, (reason, count) in product(list(everything), states, CHOSEN, ERRORS):
        yield _world(
            seen,
            chosen=chosen,
            desired_state=desired,
            request=RESTORE_OLD,
            error_reason=reason,
            error_count=count,
        )
    under_way = product((*CONTAINERS[:2], ABSENT), HOMES_TO_ARCHIVE, OF_ARCHIVING, CHOSEN, (0, 2))
    for container, home, (stored, main, deletion), chosen, count in under_way:
        yield _world(
            (container, home, stored),
            jobs=(main, deletion),
            chosen=chosen,
            operation=Operation.ARCHIVING,
            desired_state=DesiredState.STANDBY,
            request=RESTORE_OLD,
            error_count=count,
            error_reason=ErrorReason.ActionFailed if count else None,
        )


def _under_way(
    operation: Operation,
    desired: tuple[DesiredState, ...],
    containers: tuple[ContainerCase, ...],
    volumes: tuple[VolumeCase, ...],
    archives_and_jobs: list[tuple[ArchiveCase, JobFact | None, JobFact | None]],
) -> Iterator[World]:
    everything = product(containers, volumes, archives_and_jobs)
    circumstances = product(desired, (None, CANCEL), (0, 2), (CLAIMED_AT, TIMED_OUT))
    for (container, home, (stored, main, deletion)), (state, request, count, claimed_at) in product(
        list(everything), list(circumstances)
    ):
        yield _world(
            (container, home, stored),
            jobs=(main, deletion),
            operation=operation,
            desired_state=state,
            request=request,
            error_count=count,
            error_reason=ErrorReason.ActionFailed if count else None,
            op_started_at=claimed_at,
        )


NOTHING_STORED = [(ARCHIVES[0], None, None)]
STORED = (ArchiveCase(SKIPPED, YES, OLD_KEY), ArchiveCase(SKIPPED, MISSING, OLD_KEY))
TO_RESTORE = (
    *STORED,
    ArchiveCase(UNKNOWN, YES, OLD_KEY),
    ArchiveCase(None, YES, OLD_KEY),
    ArchiveCase(None, GONE_ONCE, OLD_KEY),
    ArchiveCase(archive(OLD_ARCHIVE_OP), YES, OLD_KEY),
)
STORE_LOOKS = (SKIPPED, UNKNOWN, None, OLDER, archive())
OF_ARCHIVING = [
    (ArchiveCase(seen, YES, OLD_KEY), main, None) for seen, main in product(STORE_LOOKS, JOBS)
] + [
    (ArchiveCase(seen, YES, KEY), main, deletion)
    for seen, main, deletion in product(STORE_LOOKS, (None, job(JobState.SUCCEEDED)), JOBS)
]
OF_EMPTY_ARCHIVE = [(ArchiveCase(seen, NO, key), main, None) for seen, key, main in
                    product(STORE_LOOKS, (None, KEY), JOBS)]  # fmt: skip
OWN_HOME = VolumeCase(volume(OP), NO, None)
ABOVE = (DesiredState.RUNNING, DesiredState.STANDBY)
BELOW = (DesiredState.ARCHIVED, DesiredState.DELETED)


def under_way(operation: Operation) -> Iterator[World]:
    """Yield every state of an operation under way."""
    few = (ABSENT, CONTAINERS[1], CONTAINERS[5])
    match operation:
        case Operation.PROVISIONING:
            return _under_way(operation, ABOVE, few, (*NEVER_THERE, OWN_HOME), NOTHING_STORED)
        case Operation.RESTORING:
            jobs = [(stored, main, None) for stored, main in product(TO_RESTORE, JOBS)]
            return _under_way(operation, ABOVE, few, (*NEVER_THERE, OWN_HOME), jobs)
        case Operation.CREATE_EMPTY_ARCHIVE:
            desired_states = (DesiredState.ARCHIVED,)
            return _under_way(
                operation, desired_states, (ABSENT, CONTAINERS[1]), NEVER_THERE[:3], OF_EMPTY_ARCHIVE
            )
        case Operation.STARTING:
            return _under_way(operation, (DesiredState.RUNNING,), CONTAINERS, HOMES, NOTHING_STORED)
        case Operation.STOPPING:
            return _under_way(operation, (DesiredState.STANDBY, *BELOW), CONTAINERS, HOMES, NOTHING_STORED)
        case Operation.DELETING:
            stored = [(item, None, None) for item in (ARCHIVES[0], *STORED)]
            return _under_way(operation, (DesiredState.DELETED,), CONTAINERS, NEVER_THERE, stored)
        case Operation.ARCHIVING:
            containers = (*CONTAINERS[:2], ABSENT, EXITED)
            return _under_way(operation, BELOW, containers, HOMES_TO_ARCHIVE, OF_ARCHIVING)
        case Operation.NONE:
            return without_operation()
