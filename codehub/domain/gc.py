"""Garbage collection of archives: which of them nothing protects (ADR 0007).

The store is listed first, and the database is read afterwards.
"""

import heapq
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from codehub.domain.archive_keys import archive_op_id_of
from codehub.domain.states import Phase

GUARD_FROM = 20
"""From this many archives on, the mass-deletion guard applies."""


@dataclass(frozen=True)
class StoredArchive:
    """Archive in the store. It is not complete if the object or its `.meta` is missing."""

    key: str
    workspace_id: str
    archive_op_id: str
    bytes: int
    complete: bool


@dataclass(frozen=True)
class ArchiveHolder:
    """Facts from the database about a workspace that may hold archives."""

    archive_key: str | None
    archive_op_id: str | None
    phase: Phase
    deleted_at: datetime | None
    purged_at: datetime | None
    kept: frozenset[str]
    """Archive keys that a recovery or a restore left behind and that are still in their grace period."""
    recorded: frozenset[str] = frozenset()
    """Keys of the archives that its owner can restore."""
    requested: str | None = None
    """The archive_op_id that a pending request of its owner names."""
    of_other_backend: bool = False
    """Whether the workspace is of another backend than this coordinator."""
    grace_waived: bool = False
    """Whether its owner or an admin deleted it without a grace period."""

    @property
    def skips_grace(self) -> bool:
        return self.purged_at is not None and self.grace_waived


@dataclass(frozen=True)
class GcRules:
    orphan_grace: timedelta
    retention: timedelta
    audit_retention: timedelta | None = None
    """How long the audit log keeps an entry; None keeps all of them."""
    archives_kept: int = 0
    """How many of its newest complete archives a living workspace keeps (ADR 0038)."""


@dataclass(frozen=True)
class ArchiveRemovals:
    """Archives to remove now, orphans to remember, and the alarm if nothing may be removed."""

    remove: tuple[StoredArchive, ...]
    first_seen: Mapping[str, datetime]
    alarm: str | None
    present: frozenset[str]
    """Keys of the complete archives."""


def protection(
    stored: StoredArchive, holder: ArchiveHolder | None, present: Collection[str], archives_kept: int
) -> str | None:
    """Return why an archive must stay, or None.

    `present`: keys of the complete archives in the store.
    """
    if holder is None:
        return None
    if holder.of_other_backend:
        return "its workspace is of another backend"
    if holder.purged_at is not None:
        return None
    if holder.phase is Phase.ERROR:
        return "its workspace is in ERROR"
    if holder.deleted_at is not None:
        return "its workspace is in its grace period"
    if stored.key == holder.archive_key:
        return "it is the archive of its workspace"
    if stored.archive_op_id == holder.archive_op_id:
        return "it belongs to the last archive operation"
    if stored.key in holder.kept:
        return "a recovery or a restore left it behind"
    if stored.archive_op_id == holder.requested:
        return "its workspace is about to be restored from it"
    if stored.key in _newest(holder, present, archives_kept):
        return "it is one of the newest archives of its workspace"
    if holder.archive_key is not None and stored.archive_op_id > archive_op_id_of(holder.archive_key):
        return "it is newer than the archive of its workspace"
    if holder.archive_key is not None and holder.archive_key not in present:
        return "the archive that replaced it is missing"
    return None


def _newest(holder: ArchiveHolder, present: Collection[str], count: int) -> list[str]:
    """Return the newest restorable archives that are complete in the store. Their keys sort by age."""
    return heapq.nlargest(count, (key for key in holder.recorded if key in present))


def select_archives_to_remove(
    listed: Collection[StoredArchive],
    holders: Mapping[str, ArchiveHolder],
    first_seen: Mapping[str, datetime],
    rules: GcRules,
    now: datetime,
) -> ArchiveRemovals:
    """Return which archives to remove now, and which orphans to remember."""
    present = frozenset(item.key for item in listed if item.complete)
    orphans = [
        item
        for item in listed
        if protection(item, holders.get(item.workspace_id), present, rules.archives_kept) is None
    ]
    seen = {item.key: first_seen.get(item.key, now) for item in orphans}
    due = tuple(item for item in orphans if now - seen[item.key] >= _grace(item, holders, rules))
    alarm = _alarm(len(listed), orphans, holders)
    return ArchiveRemovals(() if alarm else due, seen, alarm, present)


def _grace(item: StoredArchive, holders: Mapping[str, ArchiveHolder], rules: GcRules) -> timedelta:
    """Return how long an orphan is kept. An unknown workspace's is kept as long as the trash."""
    holder = holders.get(item.workspace_id)
    if holder is not None and holder.skips_grace:
        return timedelta(0)
    unknown = holder is None
    return max(rules.retention, rules.orphan_grace) if unknown else rules.orphan_grace


def _alarm(total: int, orphans: Iterable[StoredArchive], holders: Mapping[str, ArchiveHolder]) -> str | None:
    """Return an alarm if too many archives are orphaned at once, which is probably a mistake.

    Archives of purged workspaces do not count, nor do those that a newer archive in the store has
    replaced.
    """
    suspicious = sum(1 for item in orphans if not _is_expected(holders.get(item.workspace_id)))
    return mass_alarm(suspicious, total, "archives", known=len(holders))


def mass_alarm(suspicious: int, total: int, what: str, *, known: int) -> str | None:
    """Return why nothing may be deleted, or None.

    `known`: number of workspaces the database has ever had.
    """
    if total and not known:
        return f"The database has no workspaces, but there are {total} {what}. Nothing is deleted."
    if total >= GUARD_FROM and suspicious * 10 > total:
        return (
            f"{suspicious} of {total} {what} look orphaned at once. Nothing is deleted. Check the database."
        )
    return None


def _is_expected(holder: ArchiveHolder | None) -> bool:
    return holder is not None and (holder.purged_at is not None or holder.archive_key is not None)
