"""Reports of gateway workers: until when use is known, and when idle times restart."""

from datetime import UTC, datetime, timedelta

from codehub.domain.gateway_reports import (
    ActivityCompleteness,
    GatewayReport,
    GatewayRules,
    check_activity_complete,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
RULES = GatewayRules(silence=MINUTE, lost_after=HOUR)


def found(flushes: dict[str, int] | None = None, **reports: GatewayReport) -> ActivityCompleteness:
    return check_activity_complete(reports, flushes or {}, NOW, RULES)


def ended(silence: timedelta = SECOND, flushes: int = 0) -> GatewayReport:
    return GatewayReport(silence, flushes, ended=True)


def test_every_use_is_known_until_the_oldest_report() -> None:
    assert found() == ActivityCompleteness(NOW)
    two = {"one": GatewayReport(10 * SECOND, 3), "two": GatewayReport(30 * SECOND, 5)}
    assert found({"one": 3, "two": 6}, **two) == ActivityCompleteness(NOW - 30 * SECOND)
    late = found(one=GatewayReport(2 * MINUTE))
    assert late.uses_known_until is None and late.unknown_because == "gateways do not report"
    assert not late.lost and not late.gone


def test_a_flush_that_redis_no_longer_has_leaves_idle_unknown_until_the_next_one() -> None:
    for flushes in ({}, {"one": 2}):
        lost = found(flushes, one=GatewayReport(SECOND, 3))
        assert lost.uses_known_until is None and "Redis has lost" in lost.unknown_because
        assert not lost.lost and not lost.gone


def test_a_silent_gateway_counts_as_lost() -> None:
    lost = found(one=GatewayReport(HOUR + SECOND, 3), two=GatewayReport(SECOND))
    assert lost == ActivityCompleteness(NOW - SECOND, lost=frozenset({"one"}), gone=frozenset({"one"}))
    assert found(one=GatewayReport(HOUR + SECOND)).uses_known_until == NOW


def test_a_gateway_that_ends_beside_another_restarts_no_idle_time() -> None:
    for silence in (SECOND, 2 * MINUTE, 2 * HOUR):
        left = found({"one": 3}, one=ended(silence, 3), two=GatewayReport(SECOND))
        assert left == ActivityCompleteness(NOW - SECOND, gone=frozenset({"one"}))


def test_a_gateway_whose_last_flush_is_missing_from_redis_is_lost() -> None:
    for others in ({}, {"two": GatewayReport(SECOND)}):
        lost = found({"one": 2}, one=ended(flushes=3), **others)
        assert lost.lost == lost.gone == {"one"}


def test_the_last_gateway_is_remembered_until_it_counts_as_lost() -> None:
    left = found({"one": 3}, one=ended(30 * MINUTE, 3))
    assert left == ActivityCompleteness(None, "no gateway runs")
    lost = found({"one": 3}, one=ended(2 * HOUR, 3))
    assert lost == ActivityCompleteness(NOW, lost=frozenset({"one"}), gone=frozenset({"one"}))
