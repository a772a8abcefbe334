"""Health checks of an installation: their names, results and remedies (ADR 0021)."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum


class CheckName(StrEnum):
    DATABASE = "database"
    SCHEMA = "schema"
    REDIS = "redis"
    DATABASE_SPACE = "database_space"
    COORDINATOR = "coordinator"
    STORAGE = "storage"
    ARCHIVES = "archives"
    VOLUMES = "volumes"
    RUNTIME = "runtime"
    DISK = "disk"
    GC = "gc"


VITAL = (
    CheckName.DATABASE, CheckName.SCHEMA, CheckName.REDIS, CheckName.COORDINATOR, CheckName.STORAGE
)  # fmt: skip
"""The control plane. Every part checks these, and is not ready while one of them fails."""
LEADER_CHECKS = (CheckName.ARCHIVES, CheckName.VOLUMES, CheckName.RUNTIME, CheckName.DISK, CheckName.GC)
"""Only the leader of the coordinators can check these. A failing one degrades the installation."""

REMEDIES: Mapping[CheckName, str] = {
    CheckName.DATABASE: "Start PostgreSQL, or correct DATABASE_URL.",
    CheckName.SCHEMA: "Run `codehub migrate`, or install the CodeHub version that this database belongs to.",
    CheckName.REDIS: "Start Redis, or correct REDIS_URL.",
    CheckName.DATABASE_SPACE: (
        "Make room on the disk of PostgreSQL: delete workspaces without an archive, or remove other files. "
        "Until then, nothing can be saved."
    ),
    CheckName.COORDINATOR: "Start a coordinator (`codehub serve coordinator`), and read its log.",
    CheckName.STORAGE: "Read the log of the leading coordinator. It says why they cannot be claimed.",
    CheckName.ARCHIVES: (
        "Mount the disk or start the object store that ARCHIVE_URL names. "
        "Archives and restores wait until it answers."
    ),
    CheckName.VOLUMES: "Mount the disk of the homes. CodeHub changes no home until then.",
    CheckName.RUNTIME: (
        "Start the Docker engine, or mount the data directory. Workspaces stay as they are until then."
    ),
    CheckName.DISK: "Free disk space, archive workspaces, or lower DISK_RESERVE_BYTES or DISK_RESERVE_FILES.",
    CheckName.GC: (
        "Check that DATABASE_URL and ARCHIVE_URL belong to this installation. "
        "GC deletes nothing while it raises the alarm."
    ),
}

HEARTBEAT_SECONDS = 30.0
"""A leader whose last heartbeat is older counts as gone."""
STALE_SECONDS = 180.0
"""A result of the leader that is older counts as unknown."""


@dataclass(frozen=True)
class CheckResult:
    """Outcome of one check."""

    ok: bool
    message: str


@dataclass(frozen=True)
class DatedCheckResult(CheckResult):
    """Outcome of a check that the leader made `age` seconds ago."""

    age: float


@dataclass(frozen=True)
class Heartbeat:
    """Last heartbeat of the leader, in the database.

    `age` is in seconds; None if no coordinator ever led.
    """

    holder: str
    age: float | None


@dataclass(frozen=True)
class Check:
    """Outcome of one check with its remedy, which is empty if the check passed."""

    ok: bool
    message: str
    remedy: str


@dataclass(frozen=True)
class Readiness:
    checks: Mapping[CheckName, Check]

    @property
    def ready(self) -> bool:
        return all(self.checks[name].ok for name in VITAL)

    @property
    def degraded(self) -> list[CheckName]:
        """Failing checks that do not make the control plane unavailable."""
        return [name for name, check in self.checks.items() if name not in VITAL and not check.ok]


def judge_heartbeat(heartbeat: Heartbeat | None) -> CheckResult:
    if heartbeat is None or heartbeat.age is None:
        return CheckResult(False, "No coordinator has ever led.")
    if heartbeat.age > HEARTBEAT_SECONDS:
        return CheckResult(
            False,
            f"The leader {heartbeat.holder} has sent no heartbeat for {heartbeat.age:.0f} s: "
            "no workspace starts or stops.",
        )
    return CheckResult(True, f"{heartbeat.holder} leads.")


def judge_database_space(has_space: bool) -> CheckResult:
    if has_space:
        return CheckResult(True, "PostgreSQL can write to its disk.")
    return CheckResult(False, "PostgreSQL cannot write: its disk has no bytes or no inodes left.")


def judge_claims(unclaimed: Collection[str]) -> CheckResult:
    """Fail unless all storage is claimed: no workspace starts before (ADR 0020)."""
    if unclaimed:
        return CheckResult(
            False, f"Not claimed yet: {' and '.join(unclaimed)}. No workspace starts until then."
        )
    return CheckResult(True, "The volumes and the archive store are claimed.")


def judge_leader_check(found: DatedCheckResult | None) -> CheckResult:
    """Return the leader's result, or a failure if it is missing or too old."""
    if found is None:
        return CheckResult(False, "Unknown: no coordinator has checked this yet.")
    if found.age > STALE_SECONDS:
        return CheckResult(False, f"Unknown: last checked {found.age / 60:.0f} minutes ago ({found.message})")
    return CheckResult(found.ok, found.message)


def unknown(reason: str) -> CheckResult:
    return CheckResult(False, f"Unknown: {reason}")


def with_remedies(results: Mapping[CheckName, CheckResult]) -> Readiness:
    return Readiness(
        {
            name: Check(results[name].ok, results[name].message, "" if results[name].ok else REMEDIES[name])
            for name in CheckName
        }
    )
