"""Garbage collection of volumes: leftovers beside a home, and homes without a workspace (ADR 0007)."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from codehub.domain.gc import ArchiveHolder, GcRules, mass_alarm
from codehub.domain.observation import Generation
from codehub.domain.states import Phase

HOME = "home"
ASIDE = ".aside-"


@dataclass(frozen=True)
class Leftover:
    """Home, or a directory beside it (`.staging-*`, `.deleted-*`, `.aside-*`)."""

    home_store_key: str
    workspace_id: str
    name: str
    generation: Generation | None = None

    @property
    def key(self) -> str:
        """Key under which the time of its first sighting is stored."""
        return f"volume:{self.home_store_key.removesuffix(HOME)}{self.name}"

    @property
    def is_home(self) -> bool:
        return self.name == HOME


@dataclass(frozen=True)
class LeftoverRemovals:
    """Leftovers to remove now, those to remember, and the alarm if nothing may be removed."""

    remove: tuple[Leftover, ...]
    first_seen: Mapping[str, datetime]
    alarm: str | None


def select_leftovers_to_remove(
    listed: Collection[Leftover],
    holders: Mapping[str, ArchiveHolder],
    first_seen: Mapping[str, datetime],
    rules: GcRules,
    now: datetime,
) -> LeftoverRemovals:
    """Return which leftovers to remove now, and which to remember."""
    graces = {item: grace for item in listed if (grace := _grace(item, holders, rules)) is not None}
    seen = {item.key: first_seen.get(item.key, now) for item in graces}
    due = tuple(item for item, grace in graces.items() if now - seen[item.key] >= grace)
    homes = [item for item in listed if item.is_home]
    unknown = sum(1 for item in homes if item.workspace_id not in holders)
    alarm = mass_alarm(unknown, len(homes), "homes", known=len(holders))
    return LeftoverRemovals(() if alarm else due, seen, alarm)


def _grace(item: Leftover, holders: Mapping[str, ArchiveHolder], rules: GcRules) -> timedelta | None:
    """Return how long a leftover is kept after its first sighting; None while it is protected."""
    holder = holders.get(item.workspace_id)
    if holder is None:
        return max(rules.retention, rules.orphan_grace)
    if holder.of_other_backend:
        return None
    if holder.purged_at is not None:
        return timedelta(0) if holder.skips_grace else rules.orphan_grace
    if item.is_home:
        return None
    if item.name.startswith(ASIDE):
        return None if holder.phase is Phase.ERROR else max(rules.retention, rules.orphan_grace)
    return rules.orphan_grace
