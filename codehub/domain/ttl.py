"""When an idle workspace gives back its memory, then its disk."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta

from codehub.domain.states import DesiredState, Operation, Phase
from codehub.domain.workspace import Workspace

LONGEST = timedelta(days=7)
"""For which a workspace can be kept by hand."""


@dataclass(frozen=True)
class TtlDefaults:
    """Seconds; 0 = never."""

    standby: int
    archive: int


@dataclass(frozen=True)
class Expiry:
    """A deadline that has passed, and the wish that follows from it."""

    desired: DesiredState
    sentence: str


def known_until(silences: Collection[timedelta], now: datetime, longest: timedelta) -> datetime | None:
    """Until when every use is known, by how long ago each gateway last handed over what it had seen.

    None when one has been silent for longer than `longest`: then nobody is known to be idle.
    """
    silence = max(silences, default=timedelta(0))
    return now - silence if silence <= longest else None


def standby_at(workspace: Workspace, defaults: TtlDefaults) -> datetime | None:
    """When a RUNNING workspace will stand by if nobody uses it; None = never, or not running."""
    if workspace.phase is not Phase.RUNNING:
        return None
    ttl = _ttl(workspace.standby_ttl_seconds, defaults.standby)
    return _deadline(_idle_since(workspace), ttl, workspace.keep_until)


def archive_at(workspace: Workspace, defaults: TtlDefaults) -> datetime | None:
    """When a STANDBY workspace will be archived; None = never, or not standing by."""
    if workspace.phase is not Phase.STANDBY:
        return None
    ttl = _ttl(workspace.archive_ttl_seconds, defaults.archive)
    return _deadline(workspace.phase_changed_at, ttl, workspace.keep_until)


def extended(workspace: Workspace, defaults: TtlDefaults, by: timedelta, now: datetime) -> datetime:
    """Until when a workspace is kept that is kept `by` longer than it would be; not further than LONGEST."""
    present = standby_at(workspace, defaults) or archive_at(workspace, defaults) or workspace.keep_until
    return min(max(present or now, now) + by, now + LONGEST)


def expired(
    workspace: Workspace, defaults: TtlDefaults, now: datetime, uses_known_until: datetime | None
) -> Expiry | None:
    """The wish that a TTL has for this workspace now, with its reason; None while there is none.

    A RUNNING one expires only if it is known not to have been used until its deadline.
    """
    if workspace.operation is not Operation.NONE or workspace.deleted_at is not None:
        return None
    if workspace.desired_state.value != workspace.phase.value:
        return None
    standby = standby_at(workspace, defaults)
    if standby is not None and uses_known_until is not None and standby <= uses_known_until:
        return Expiry(DesiredState.STANDBY, f"Not used since {_words(_idle_since(workspace))}: pausing it.")
    archive = archive_at(workspace, defaults)
    if archive is not None and archive <= now:
        return Expiry(
            DesiredState.ARCHIVED, f"Paused since {_words(workspace.phase_changed_at)}: archiving it."
        )
    return None


def _idle_since(workspace: Workspace) -> datetime:
    """A workspace that starts cannot be used: the clock of use begins when it runs."""
    return max(workspace.last_access_at, workspace.phase_changed_at)


def _ttl(own: int | None, default: int) -> int:
    return default if own is None else own


def _deadline(since: datetime, ttl: int, keep_until: datetime | None) -> datetime | None:
    if ttl == 0:
        return None
    deadline = since + timedelta(seconds=ttl)
    return max(deadline, keep_until) if keep_until is not None else deadline


def _words(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"
