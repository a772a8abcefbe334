"""Check whether the activity in Redis is complete, from reports of gateway workers (ADR 0018)."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from codehub.domain.ttl import known_until


@dataclass(frozen=True)
class ActivitySnapshot:
    """Activity in Redis: when workspaces were last used, and the last flush of each gateway worker."""

    uses: Mapping[str, float]
    flushes: Mapping[str, int]


@dataclass(frozen=True)
class GatewayReport:
    """Last report of a gateway worker in the database."""

    silence: timedelta
    """Time since the worker last flushed its activity."""
    flushes: int = 0
    """Number of that flush."""
    ended: bool = False


@dataclass(frozen=True)
class GatewayRules:
    silence: timedelta
    """A worker that has not reported for longer keeps every workspace running."""
    lost_after: timedelta


@dataclass(frozen=True)
class ActivityCompleteness:
    """Result of the comparison of reports with Redis."""

    uses_known_until: datetime | None
    unknown_because: str = ""
    lost: frozenset[str] = frozenset()
    """Workers whose last activity is lost, or after which no worker ran: idle times restart."""
    gone: frozenset[str] = frozenset()
    """Workers that no report is expected from: the lost ones, and those that have shut down."""


def check_activity_complete(
    reports: Mapping[str, GatewayReport], flushes: Mapping[str, int], now: datetime, rules: GatewayRules
) -> ActivityCompleteness:
    """Compare the reports with the numbers of the flushes that Redis has, read afterwards.

    Redis keeps a flush and its number together. A smaller number than the reported one means that
    Redis has lost data. A running worker sends it again. For a worker that has ended it is lost.
    """
    silent = {name for name, report in reports.items() if report.silence > rules.lost_after}
    ended = {name for name, report in reports.items() if report.ended}
    missing = {name for name, report in reports.items() if flushes.get(name, 0) < report.flushes}
    running = reports.keys() - ended - silent
    complete = ended - missing
    lost = (silent | ended) - complete if running else silent | (ended & missing)
    gone = lost | complete if running else lost
    until, reason = known_until([reports[name].silence for name in running], now, rules.silence), ""
    if until is None:
        reason = "gateways do not report"
    if running & missing:
        until, reason = None, "Redis has lost activity, which the gateways will send again"
    if not running and complete - lost:
        until, reason = None, "no gateway runs"
    return ActivityCompleteness(until, reason, frozenset(lost), frozenset(gone))


def silence_of_awaited(reports: Mapping[str, GatewayReport], gone: Collection[str]) -> dict[str, float]:
    """Return the silence in seconds of each worker that a report is expected from."""
    return {name: report.silence.total_seconds() for name, report in reports.items() if name not in gone}
