"""Findings of `codehub doctor`."""

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class Finding:
    """Result of one check. `advice` states the remedy."""

    severity: Severity
    subject: str
    message: str
    advice: str = ""


_RANK = {Severity.OK: 0, Severity.WARN: 1, Severity.FAIL: 2}


def merged(own: list[Finding], recorded: list[Finding]) -> list[Finding]:
    """Add recorded findings.

    Of two with the same subject keep the worse, or the recorded one if equal.
    """
    found = list(own)
    for finding in recorded:
        index = next((index for index, each in enumerate(found) if each.subject == finding.subject), None)
        if index is None:
            found.append(finding)
        elif _RANK[finding.severity] >= _RANK[found[index].severity]:
            found[index] = finding
    return found


def ok(subject: str, message: str) -> Finding:
    return Finding(Severity.OK, subject, message)


def warn(subject: str, message: str, advice: str = "") -> Finding:
    return Finding(Severity.WARN, subject, message, advice)


def fail(subject: str, message: str, advice: str = "") -> Finding:
    return Finding(Severity.FAIL, subject, message, advice)
