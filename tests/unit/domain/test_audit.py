"""Audit entries: their details and addresses, and the dashboard's texts for them."""

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from codehub.domain.audit import CLI, Action, Actor, AuditEntry, Outcome, Target, TargetKind, network_of
from codehub.domain.weak_settings import WEAKNESSES_OF_PART, Weakness

NOW = datetime(2026, 1, 1, tzinfo=UTC)
WEB = Path(__file__).parents[3] / "web" / "src"


def test_a_detail_that_an_action_does_not_declare_is_rejected() -> None:
    AuditEntry(NOW, CLI, Action.USER_CREATED, details={"role": "user"})
    with pytest.raises(ValueError, match=r"user\.created does not record password"):
        AuditEntry(NOW, CLI, Action.USER_CREATED, details={"password": "x"})
    with pytest.raises(ValueError, match=r"user\.password_set does not record role"):
        AuditEntry(NOW, CLI, Action.USER_PASSWORD_SET, details={"role": "user"})


def test_texts_are_cut_and_lists_are_short() -> None:
    target = Target(TargetKind.USER, None, "n" * 201)
    many = tuple("x" * 300 for _ in range(50))
    values = AuditEntry(NOW, CLI, Action.SECURITY_WEAKENED, target, {"settings": many}).values()
    assert values["target_name"] == "n" * 199 + "…"
    assert values["details"] == {"settings": ["x" * 199 + "…"] * 10}


@pytest.mark.parametrize(
    ("given", "recorded", "network"),
    [
        ("192.0.2.7", "192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7", "192.0.2.7"),
        ("2001:DB8::7", "2001:db8::7", "2001:db8::/64"),
        ("fe80::1%eth0", "fe80::1", "fe80::/64"),
        ("", None, None),
        ("unix:", None, None),
        ("192.0.2.7\nforged", None, None),
    ],
)
def test_only_an_address_is_recorded_as_one(given: str, recorded: str | None, network: str | None) -> None:
    assert AuditEntry(NOW, Actor.anonymous(given), Action.SESSION_FAILED).address == recorded
    assert network_of(given) == network


def test_the_actions_that_are_failures() -> None:
    failures = {action for action in Action if AuditEntry(NOW, CLI, action).outcome is Outcome.FAILURE}
    assert failures == {
        Action.SESSION_FAILED,
        Action.SESSION_LOCKED,
        Action.SESSION_CONFIRMATION_FAILED,
        Action.SESSION_FAILURES_COUNTED,
    }


@pytest.mark.parametrize("language", ["en", "ko"])
def test_the_dashboard_has_a_text_for_every_action(language: str) -> None:
    texts = (WEB / "i18n" / f"audit.{language}.ts").read_text()
    assert set(re.findall(r'^ +"([a-z]+\.[a-z_]+)":', texts, re.MULTILINE)) == {each.value for each in Action}


def test_the_dashboard_knows_every_weakness() -> None:
    types = (WEB / "audit.ts").read_text()
    assert set(re.findall(r'^  \| "([a-z_]+)"', types, re.MULTILINE)) == {each.value for each in Weakness}


def test_every_weakness_is_recorded_by_one_part() -> None:
    assert sorted(weakness for part in WEAKNESSES_OF_PART.values() for weakness in part) == sorted(Weakness)
