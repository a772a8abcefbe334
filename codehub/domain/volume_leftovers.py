"""What lies on the disk of the homes and may go: remains beside a home, and homes that belong to nobody."""

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
    """A home, or what lies beside it: `.staging-*`, `.deleted-*` of dead jobs, `.aside-*` of recoveries."""

    home_store_key: str
    workspace_id: str
    name: str
    generation: Generation | None = None

    @property
    def key(self) -> str:
        """Under which its first sight is remembered."""
        return f"volume:{self.home_store_key.removesuffix(HOME)}{self.name}"

    @property
    def is_home(self) -> bool:
        return self.name == HOME


@dataclass(frozen=True)
class LeftoverSweep:
    remove: tuple[Leftover, ...]
    first_seen: Mapping[str, datetime]
    alarm: str | None


def sweep_leftovers(
    listed: Collection[Leftover],
    holders: Mapping[str, ArchiveHolder],
    first_seen: Mapping[str, datetime],
    rules: GcRules,
    now: datetime,
) -> LeftoverSweep:
    """What to remove now, and which leftovers to remember."""
    graces = {item: grace for item in listed if (grace := _grace(item, holders, rules)) is not None}
    seen = {item.key: first_seen.get(item.key, now) for item in graces}
    due = tuple(item for item, grace in graces.items() if now - seen[item.key] >= grace)
    homes = [item for item in listed if item.is_home]
    unknown = sum(1 for item in homes if item.workspace_id not in holders)
    alarm = mass_alarm(unknown, len(homes), "homes", known=len(holders))
    return LeftoverSweep(() if alarm else due, seen, alarm)


def _grace(item: Leftover, holders: Mapping[str, ArchiveHolder], rules: GcRules) -> timedelta | None:
    """How long it waits from its first sight on; None while it is protected."""
    holder = holders.get(item.workspace_id)
    if holder is None:
        return max(rules.retention, rules.orphan_grace)
    if holder.left_alone:
        return None
    if holder.purged_at is not None:
        return timedelta(0) if holder.skips_grace else rules.orphan_grace
    if item.is_home:
        return None
    if item.name.startswith(ASIDE):
        return None if holder.phase is Phase.ERROR else max(rules.retention, rules.orphan_grace)
    return rules.orphan_grace
