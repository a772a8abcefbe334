"""Deadlines (TTLs) after which an idle workspace is stopped, and later archived.

A running workspace is awake until its last use, the end of its last hold (`domain/awake.py`), or the
beginning of RUNNING, whichever is latest. Without use by a person, use by programs and holds count
for `TtlDefaults.max_awake` only. The standby TTL begins when it is no longer awake, so a build that
has ended leaves time to read its result (ADR 0037).
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta

from codehub.domain.awake import FOREVER, NOT_HELD, Awake
from codehub.domain.states import DesiredState, Operation, Phase
from codehub.domain.workspace import Workspace

LONGEST_EXTENSION = timedelta(days=7)
"""Longest time for which an owner can keep a workspace from expiring."""
MOST_AWAKE_CPU_PERCENT = 10_000
"""Highest CPU use, in percent of one core, that can be set to keep workspaces awake."""


@dataclass(frozen=True)
class TtlDefaults:
    """TTLs of workspaces without their own, in seconds. 0 means never."""

    standby: int
    archive: int
    max_awake: int = 0
    """Longest time for which programs and holds keep a workspace awake without a person; 0 means no limit."""
    awake_cpu_percent: int = 0
    """CPU use above which a workspace stays awake, in percent of one core; 0 means that none does."""


@dataclass(frozen=True)
class Expiry:
    """Desired state of a workspace whose deadline has passed, with the reason."""

    desired: DesiredState
    sentence: str


def known_until(silences: Collection[timedelta], now: datetime, longest: timedelta) -> datetime | None:
    """Return until when every use is known, from the time since each gateway's last report.

    None if one has been silent for longer than `longest`: then no workspace is known to be idle.
    """
    silence = max(silences, default=timedelta(0))
    return now - silence if silence <= longest else None


def standby_at(workspace: Workspace, defaults: TtlDefaults, awake: Awake = NOT_HELD) -> datetime | None:
    """Return when a RUNNING workspace will be stopped if nothing changes until then, or None for never.

    While a command runs, that is when it has run for as long as it may.
    """
    if workspace.phase is not Phase.RUNNING:
        return None
    awake_until = min(busy_until(workspace, awake), awake_limit(workspace, defaults))
    return _deadline(awake_until, standby_ttl(workspace, defaults), workspace.keep_until)


def busy_until(workspace: Workspace, awake: Awake) -> datetime:
    """Return until when use and holds keep a workspace awake if nothing limits them, or FOREVER."""
    used = _idle_since(workspace)
    return max(used, awake.until, workspace.holds_changed_at or used)


def awake_limit(workspace: Workspace, defaults: TtlDefaults) -> datetime:
    """Return until when programs and holds may keep a workspace awake, or FOREVER."""
    if defaults.max_awake == 0:
        return FOREVER
    return without_person_since(workspace) + timedelta(seconds=defaults.max_awake)


def without_person_since(workspace: Workspace) -> datetime:
    """Return the last use by a person, or when the workspace began to run if that is later."""
    return max(workspace.person_access_at or workspace.last_access_at, workspace.phase_changed_at)


def standby_ttl(workspace: Workspace, defaults: TtlDefaults) -> int:
    return _ttl(workspace.standby_ttl_seconds, defaults.standby)


def awake_cpu_percent(own: int | None, defaults: TtlDefaults) -> int:
    """Return the CPU use above which a workspace stays awake, or 0 if none keeps it awake."""
    return defaults.awake_cpu_percent if own is None else own


def archive_at(workspace: Workspace, defaults: TtlDefaults) -> datetime | None:
    """Return when a STANDBY workspace will be archived, or None for never."""
    if workspace.phase is not Phase.STANDBY:
        return None
    ttl = _ttl(workspace.archive_ttl_seconds, defaults.archive)
    return _deadline(workspace.phase_changed_at, ttl, workspace.keep_until)


def extended(
    workspace: Workspace, defaults: TtlDefaults, by: timedelta, now: datetime, *, by_person: bool = True
) -> datetime:
    """Return the workspace's deadline moved by `by`, at most LONGEST_EXTENSION from now.

    Holds do not count as its deadline, because they may end early. A program extends no further than
    it may keep the workspace awake, and never shortens an extension.
    """
    present = standby_at(workspace, defaults) or archive_at(workspace, defaults) or workspace.keep_until
    until = min(max(present or now, now) + by, now + LONGEST_EXTENSION)
    if by_person or workspace.phase is not Phase.RUNNING:
        return until
    until = min(until, awake_limit(workspace, defaults))
    return max(until, workspace.keep_until or until)


def expired(
    workspace: Workspace,
    defaults: TtlDefaults,
    now: datetime,
    uses_known_until: datetime | None,
    awake: Awake = NOT_HELD,
) -> Expiry | None:
    """Return the desired state of an expired workspace with the reason, or None.

    A RUNNING one expires only if it is known that nobody used it before its deadline (ADR 0018).
    """
    if workspace.operation is not Operation.NONE or workspace.deleted_at is not None:
        return None
    if workspace.request is not None:
        return None
    if workspace.desired_state.value != workspace.phase.value:
        return None
    standby = standby_at(workspace, defaults, awake)
    if standby is not None and uses_known_until is not None and standby <= uses_known_until:
        return Expiry(DesiredState.STANDBY, f"{_why_idle(workspace, defaults, awake)}: stopping it.")
    archive = archive_at(workspace, defaults)
    if archive is not None and archive <= now:
        return Expiry(
            DesiredState.ARCHIVED, f"Stopped since {_timestamp(workspace.phase_changed_at)}: archiving it."
        )
    return None


def _why_idle(workspace: Workspace, defaults: TtlDefaults, awake: Awake) -> str:
    used, busy = _idle_since(workspace), busy_until(workspace, awake)
    if awake_limit(workspace, defaults) < busy:
        since = _timestamp(without_person_since(workspace))
        return f"No person has used it since {since}, and programs have kept it running as long as they may"
    if used < busy:
        return f"Not used since {_timestamp(used)}, nor kept awake since {_timestamp(busy)}"
    return f"Not used since {_timestamp(used)}"


def _idle_since(workspace: Workspace) -> datetime:
    """Return the last use, or when the workspace began to run if that is later."""
    return max(workspace.last_access_at, workspace.phase_changed_at)


def _ttl(own: int | None, default: int) -> int:
    return default if own is None else own


def _deadline(since: datetime, ttl: int, keep_until: datetime | None) -> datetime | None:
    if ttl == 0 or since == FOREVER:
        return None
    deadline = since + timedelta(seconds=ttl)
    return max(deadline, keep_until) if keep_until is not None else deadline


def _timestamp(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"
