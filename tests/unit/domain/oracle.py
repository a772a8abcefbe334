"""Section 3 of the specification as tables, written from its text and not from the code."""

from codehub.domain.conditions import Conditions
from codehub.domain.states import ErrorReason
from tests.unit.domain.builders import ARCHIVE, EXISTS, HEALTHY, READY, VOLUME

TERMINAL = {
    ErrorReason.Timeout,
    ErrorReason.DataLost,
    ErrorReason.ImagePullFailed,
    ErrorReason.ContainerWithoutVolume,
    ErrorReason.ArchiveCorrupted,
    ErrorReason.RetryExceeded,
}

ANY = None
# container ready, volume, archive -> level; the first row that fits
LEVELS = (
    ((True, True, ANY), "RUNNING"),
    ((ANY, True, ANY), "STANDBY"),
    ((ANY, ANY, True), "ARCHIVED"),
    ((ANY, ANY, ANY), "PENDING"),
)
# deleted, terminal, container exists, volume, healthy -> phase; the first row that fits
PHASES = (
    ((True, ANY, False, False, ANY), "DELETED"),
    ((True, True, False, True, ANY), "DELETED"),  # its volume only waits for the purge
    ((True, ANY, ANY, ANY, ANY), "DELETING"),
    ((ANY, True, ANY, ANY, ANY), "ERROR"),
    ((ANY, ANY, ANY, ANY, False), "ERROR"),
)
# level, container exists, archive_key set, desired -> operation; the first row that fits
OPERATIONS = (
    ((ANY, ANY, ANY, "PENDING"), "NONE"),
    (("RUNNING", ANY, ANY, "RUNNING"), "NONE"),
    (("RUNNING", ANY, ANY, ANY), "STOPPING"),
    (("STANDBY", ANY, ANY, "RUNNING"), "STARTING"),
    (("STANDBY", True, ANY, ANY), "STOPPING"),
    (("STANDBY", False, ANY, "STANDBY"), "NONE"),
    (("STANDBY", False, ANY, ANY), "ARCHIVING"),
    # DELETING is done when there is no container and no volume: without a container, it never begins
    (("PENDING", False, ANY, "DELETED"), "NONE"),
    (("ARCHIVED", False, ANY, "DELETED"), "NONE"),
    (("PENDING", True, ANY, "DELETED"), "DELETING"),
    (("ARCHIVED", True, ANY, "DELETED"), "DELETING"),
    # a container without a home is removed first
    (("PENDING", True, ANY, ANY), "STOPPING"),
    (("ARCHIVED", True, ANY, ANY), "STOPPING"),
    (("ARCHIVED", False, ANY, "ARCHIVED"), "NONE"),
    (("ARCHIVED", False, ANY, ANY), "RESTORING"),
    # an archive_key whose object is not seen leads to no operation
    (("PENDING", False, True, ANY), "NONE"),
    (("PENDING", False, False, "ARCHIVED"), "CREATE_EMPTY_ARCHIVE"),
    (("PENDING", False, False, ANY), "PROVISIONING"),
)


def level(conditions: Conditions) -> str:
    return _first(LEVELS, tuple(conditions[name].status for name in (READY, VOLUME, ARCHIVE)))


def phase(conditions: Conditions, deleted: bool, error: ErrorReason | None, waived: bool = False) -> str:
    """Return the phase. `waived`: deleted without an archive and a grace period (ADR 0025)."""
    facts = (
        deleted,
        error in TERMINAL or (deleted and waived),
        *(conditions[name].status for name in (EXISTS, VOLUME, HEALTHY)),
    )
    return _first(PHASES, facts) or level(conditions)


def operation(level: str, container: bool, key: bool, desired: str, waived: bool = False) -> str:
    if waived and (level, container, desired) == ("STANDBY", False, "DELETED"):
        return "NONE"  # the home is removed without an archive, once the workspace is purged
    return _first(OPERATIONS, (level, container, key, desired))


def _first(table: tuple[tuple[tuple[object, ...], str], ...], facts: tuple[object, ...]) -> str:
    for pattern, outcome in table:
        if all(want is ANY or want == fact for want, fact in zip(pattern, facts, strict=True)):
            return outcome
    return ""
