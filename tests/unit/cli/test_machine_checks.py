"""Report of `codehub doctor` about the quotas of homes."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from codehub.cli import machine_checks
from codehub.cli.findings import Finding, Severity
from codehub.settings import load
from codehub.storage.volumes.quota import QuotaState

OFF, COUNTED, ENFORCED = QuotaState.OFF, QuotaState.COUNTED, QuotaState.ENFORCED


QuotaLine = Callable[..., Finding]


@pytest.fixture
def quota_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> QuotaLine:
    """Return the finding about quotas on a simulated machine."""

    def line(state: QuotaState, uid: int = 0, **settings: int) -> Finding:
        monkeypatch.setattr(machine_checks, "quota_state", lambda _path: state)
        monkeypatch.setattr(os, "geteuid", lambda: uid)
        return machine_checks.check_quota(load(CODEHUB_DATA_DIR=tmp_path, **settings))

    return line


@pytest.mark.parametrize("setting", ["home_quota_bytes", "home_quota_files"])
@pytest.mark.parametrize(
    ("state", "uid", "reason"),
    [
        (OFF, 0, "has no user quotas"),
        (COUNTED, 0, "enforces no limits"),
        (ENFORCED, 1000, "does not run as root"),
    ],
)
def test_a_quota_that_has_no_effect_is_a_failure_with_its_remedy(
    quota_line: QuotaLine, setting: str, state: QuotaState, uid: int, reason: str
) -> None:
    finding = quota_line(state, uid, **{setting: 1 << 30})
    assert finding.severity is Severity.FAIL
    assert setting.upper() in finding.message
    assert reason in finding.message
    assert "usrquota" in finding.advice


@pytest.mark.parametrize("state", [OFF, COUNTED])
def test_without_a_quota_the_watchdog_is_named(quota_line: QuotaLine, state: QuotaState) -> None:
    finding = quota_line(state)
    assert finding.severity is Severity.OK
    assert "watchdog" in finding.message


def test_an_enforced_quota_is_ok(quota_line: QuotaLine) -> None:
    finding = quota_line(ENFORCED, home_quota_bytes=1 << 30)
    assert finding.severity is Severity.OK
    assert "are enforced" in finding.message


def test_quotas_that_could_be_used_are_named(quota_line: QuotaLine) -> None:
    finding = quota_line(ENFORCED)
    assert finding.severity is Severity.OK
    assert "HOME_QUOTA_BYTES is not set" in finding.message


def test_the_file_system_of_the_homes_is_checked(quota_line: QuotaLine, tmp_path: Path) -> None:
    """Before the first start, it is the file system of the nearest existing parent directory."""
    assert str(tmp_path) in quota_line(OFF).message
    (tmp_path / "volumes").mkdir()
    assert str(tmp_path / "volumes") in quota_line(OFF).message


def test_doctor_reports_the_quotas(tmp_path: Path) -> None:
    findings = machine_checks.check_machine(load(CODEHUB_DATA_DIR=tmp_path))
    assert [finding.subject for finding in findings].count("quota") == 1
