"""Health checks: their results, and that the dashboard shows all of them."""

from dataclasses import replace
from pathlib import Path

import pytest

from codehub.domain.health_checks import (
    LEADER_CHECKS,
    REMEDIES,
    VITAL,
    CheckName,
    CheckResult,
    DatedCheckResult,
    Heartbeat,
    judge_heartbeat,
    judge_leader_check,
    with_remedies,
)

ROOT = Path(__file__).parents[3]
GOOD = dict.fromkeys(CheckName, CheckResult(True, "Good."))


def test_every_check_has_one_kind_and_a_remedy() -> None:
    assert {*VITAL, *LEADER_CHECKS, CheckName.DATABASE_SPACE} == set(CheckName) == set(REMEDIES)
    assert not set(VITAL) & set(LEADER_CHECKS)


@pytest.mark.parametrize("name", CheckName)
def test_only_a_failing_vital_check_makes_a_part_unready(name: CheckName) -> None:
    found = with_remedies(GOOD | {name: CheckResult(False, "Bad.")})
    assert found.ready is (name not in VITAL)
    assert found.degraded == ([] if name in VITAL else [name])
    assert {each: check.remedy for each, check in found.checks.items() if check.remedy} == {
        name: REMEDIES[name]
    }


def test_a_result_is_valid_for_three_minutes() -> None:
    found = DatedCheckResult(True, "Good.", 180.0)
    assert judge_leader_check(found) == CheckResult(True, "Good.")
    old = judge_leader_check(replace(found, age=600.0))
    assert old == CheckResult(False, "Unknown: last checked 10 minutes ago (Good.)")
    assert not judge_leader_check(None).ok


def test_a_leader_is_gone_after_half_a_minute_of_silence() -> None:
    assert judge_heartbeat(Heartbeat("host:1", 30.0)).ok
    assert not judge_heartbeat(Heartbeat("host:1", 30.1)).ok
    assert not judge_heartbeat(Heartbeat("host:1", None)).ok
    assert not judge_heartbeat(None).ok


def test_the_dashboard_shows_the_same_checks_and_remedies() -> None:
    english = (ROOT / "web/src/i18n/en.ts").read_text()
    assert [name for name in CheckName if f'{name}: "' not in english] == []
    assert [remedy for remedy in REMEDIES.values() if f'"{remedy}"' not in english] == []
