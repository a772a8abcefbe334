"""Why a running workspace is still running, and when it will stop, in one sentence."""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from codehub.domain.awake import CPU_WINDOW, FOREVER, Awake
from codehub.domain.states import Phase
from codehub.domain.ttl import (
    TtlDefaults,
    awake_limit,
    busy_until,
    standby_at,
    standby_ttl,
    without_person_since,
)
from codehub.domain.workspace import Workspace


class StandbyCode(StrEnum):
    """Why a workspace runs. A dashboard translates it with the facts of its Standby."""

    NEVER = "never"
    IDLE = "idle"
    COMMAND = "command"
    LEASE = "lease"
    CPU = "cpu"
    KEPT = "kept"
    LIMIT = "limit"


@dataclass(frozen=True)
class Standby:
    """When a running workspace will be stopped if nothing changes until then, and why not earlier.

    `since`: when the oldest command or the CPU use began, or a person last used it (LIMIT). `until`:
    when the lease expires, the extension ends, or the limit is reached. `not_before`: what else holds
    it, after its commands have ended. `cpu_percent`: its CPU use, if that keeps it awake, in percent of
    one core.
    """

    at: datetime | None
    code: StandbyCode
    ttl_seconds: int
    since: datetime | None = None
    until: datetime | None = None
    not_before: datetime | None = None
    commands: int = 0
    lease_reason: str | None = None
    cpu_percent: int | None = None
    cpu_above_percent: int | None = None

    @property
    def reason(self) -> str:
        return _SENTENCES[self.code](self)


def standby(workspace: Workspace, defaults: TtlDefaults, awake: Awake) -> Standby | None:
    """Return when and why a workspace will be stopped for standby; None if it is not RUNNING."""
    if workspace.phase is not Phase.RUNNING:
        return None
    at, ttl = standby_at(workspace, defaults, awake), standby_ttl(workspace, defaults)
    if ttl == 0:
        return Standby(None, StandbyCode.NEVER, 0)
    busy, limit = busy_until(workspace, awake), awake_limit(workspace, defaults)
    if at is not None and at == workspace.keep_until:
        return Standby(at, StandbyCode.KEPT, ttl, until=at)
    if limit < busy and (busy < FOREVER or limit <= awake.now):
        since = without_person_since(workspace)
        return Standby(at, StandbyCode.LIMIT, ttl, since=since, until=limit)
    if awake.commands and awake.commands_until >= awake.lease_until:
        return _commands(workspace, awake, at, ttl)
    if awake.cpu is not None:
        return _with_cpu(
            Standby(at, StandbyCode.CPU, ttl, since=awake.cpu.began_at, commands=len(awake.commands)), awake
        )
    if awake.lease is not None:
        lease = awake.lease
        return Standby(
            at,
            StandbyCode.LEASE,
            ttl,
            until=lease.expires_at,
            commands=len(awake.commands),
            lease_reason=lease.reason,
        )
    return Standby(at, StandbyCode.IDLE, ttl)


def _commands(workspace: Workspace, awake: Awake, at: datetime | None, ttl: int) -> Standby:
    """Return why a workspace with commands runs, and what else holds it if they end now."""
    after = timedelta(seconds=ttl)
    others = [moment for moment in (workspace.keep_until,) if moment is not None]
    if awake.lease is not None:
        others.append(awake.lease.expires_at + after)
    found = Standby(
        at,
        StandbyCode.COMMAND,
        ttl,
        since=min(command.started_at for command in awake.commands),
        not_before=max((moment for moment in others if moment > awake.now + after), default=None),
        commands=len(awake.commands),
        lease_reason=None if awake.lease is None else awake.lease.reason,
    )
    return _with_cpu(found, awake)


def _with_cpu(found: Standby, awake: Awake) -> Standby:
    """Add the CPU use that keeps a workspace awake, rounded down: it is more than that."""
    if awake.cpu is None:
        return found
    return replace(found, cpu_percent=int(awake.cpu.percent), cpu_above_percent=awake.cpu.above_percent)


def _never(_standby: Standby) -> str:
    return "Never stops when unused."


def _idle(standby: Standby) -> str:
    return f"Stops at {_time(standby.at)} if unused."


def _kept(standby: Standby) -> str:
    return f"Kept running until {_time(standby.until)}, because someone extended it. Then it stops if unused."


def _lease(standby: Standby) -> str:
    sentence = f"Kept awake by a lease until {_time(standby.until)}: {standby.lease_reason}."
    if standby.commands:
        sentence += " A command runs as well." if standby.commands == 1 else " Commands run as well."
    return sentence if standby.at is None else f"{sentence} Stops at {_time(standby.at)} if unused."


def _limit(standby: Standby) -> str:
    return (
        f"No person has used it since {_time(standby.since)}: commands, leases, CPU use and programs keep it "
        f"awake until {_time(standby.until)} and no longer. Stops at {_time(standby.at)}."
    )


def _command(standby: Standby) -> str:
    one = standby.commands == 1
    begun = "Running a command" if one else f"Running {standby.commands} commands"
    ends = "it ends" if one else "the last one ends"
    sentence = f"{begun} since {_time(standby.since)}; stops {period(standby.ttl_seconds)} after {ends}"
    if standby.not_before is not None:
        sentence += f", not before {_time(standby.not_before)}"
    if standby.at is not None:
        sentence += f", at the latest at {_time(standby.at)}"
    return (
        f"{sentence}." if standby.cpu_percent is None else f"{sentence}. Its CPU use keeps it awake as well."
    )


def _cpu(standby: Standby) -> str:
    sentence = (
        f"Kept awake by its CPU use since {_time(standby.since)}: {standby.cpu_percent} % of a core on "
        f"average over {period(int(CPU_WINDOW.total_seconds()))}. Stops {period(standby.ttl_seconds)} after "
        f"that is no longer above {standby.cpu_above_percent} %"
    )
    if standby.at is not None:
        sentence += f", at the latest at {_time(standby.at)}"
    if not standby.commands:
        return f"{sentence}."
    return f"{sentence}. {'A command runs' if standby.commands == 1 else 'Commands run'} as well."


_SENTENCES: Final = {
    StandbyCode.NEVER: _never,
    StandbyCode.IDLE: _idle,
    StandbyCode.COMMAND: _command,
    StandbyCode.LEASE: _lease,
    StandbyCode.CPU: _cpu,
    StandbyCode.KEPT: _kept,
    StandbyCode.LIMIT: _limit,
}


def period(seconds: int) -> str:
    """Return a duration in its largest whole unit: "10 minutes", "90 seconds"."""
    for unit, size in (("day", 86_400), ("hour", 3600), ("minute", 60), ("second", 1)):
        if seconds >= size and seconds % size == 0:
            count = seconds // size
            return f"{count} {unit}" if count == 1 else f"{count} {unit}s"
    return "0 seconds"


def _time(moment: datetime | None) -> str:
    return "an unknown time" if moment is None else f"{moment:%Y-%m-%d %H:%M} UTC"
