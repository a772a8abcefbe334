"""Deadlines (TTLs) after which an idle workspace is stopped, and later archived."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta

from codehub.domain.states import DesiredState, Operation, Phase
from codehub.domain.workspace import Workspace

LONGEST_EXTENSION = timedelta(days=7)
"""Longest time for which an owner can keep a workspace from expiring."""


@dataclass(frozen=True)
class TtlDefaults:
    """TTLs of workspaces without their own, in seconds. 0 means never."""

    standby: int
    archive: int


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


def standby_at(workspace: Workspace, defaults: TtlDefaults) -> datetime | None:
    """Return when a RUNNING workspace will be stopped if it stays unused, or None for never."""
    if workspace.phase is not Phase.RUNNING:
        return None
    ttl = _ttl(workspace.standby_ttl_seconds, defaults.standby)
    return _deadline(_idle_since(workspace), ttl, workspace.keep_until)


def archive_at(workspace: Workspace, defaults: TtlDefaults) -> datetime | None:
    """Return when a STANDBY workspace will be archived, or None for never."""
    if workspace.phase is not Phase.STANDBY:
        return None
    ttl = _ttl(workspace.archive_ttl_seconds, defaults.archive)
    return _deadline(workspace.phase_changed_at, ttl, workspace.keep_until)


def extended(workspace: Workspace, defaults: TtlDefaults, by: timedelta, now: datetime) -> datetime:
    """Return the workspace's deadline moved by `by`, at most LONGEST_EXTENSION from now."""
    present = standby_at(workspace, defaults) or archive_at(workspace, defaults) or workspace.keep_until
    return min(max(present or now, now) + by, now + LONGEST_EXTENSION)


def expired(
    workspace: Workspace, defaults: TtlDefaults, now: datetime, uses_known_until: datetime | None
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
    standby = standby_at(workspace, defaults)
    if standby is not None and uses_known_until is not None and standby <= uses_known_until:
        return Expiry(
            DesiredState.STANDBY, f"Not used since {_timestamp(_idle_since(workspace))}: stopping it."
        )
    archive = archive_at(workspace, defaults)
    if archive is not None and archive <= now:
        return Expiry(
            DesiredState.ARCHIVED, f"Stopped since {_timestamp(workspace.phase_changed_at)}: archiving it."
        )
    return None


def _idle_since(workspace: Workspace) -> datetime:
    """Return the last use, or when the workspace began to run if that is later."""
    return max(workspace.last_access_at, workspace.phase_changed_at)


def _ttl(own: int | None, default: int) -> int:
    return default if own is None else own


def _deadline(since: datetime, ttl: int, keep_until: datetime | None) -> datetime | None:
    if ttl == 0:
        return None
    deadline = since + timedelta(seconds=ttl)
    return max(deadline, keep_until) if keep_until is not None else deadline


def _timestamp(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"
