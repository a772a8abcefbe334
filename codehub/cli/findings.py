"""What `codehub doctor` says about one thing."""

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at; `advice` says what to do about it."""

    level: Level
    subject: str
    message: str
    advice: str = ""


_SEVERITY = {Level.OK: 0, Level.WARN: 1, Level.FAIL: 2}


def merged(own: list[Finding], recorded: list[Finding]) -> list[Finding]:
    """Add recorded findings. Of two about the same thing the worse stays, or the recorded one if equal."""
    found = list(own)
    for finding in recorded:
        place = next((place for place, each in enumerate(found) if each.subject == finding.subject), None)
        if place is None:
            found.append(finding)
        elif _SEVERITY[finding.level] >= _SEVERITY[found[place].level]:
            found[place] = finding
    return found


def ok(subject: str, message: str) -> Finding:
    return Finding(Level.OK, subject, message)


def warn(subject: str, message: str, advice: str = "") -> Finding:
    return Finding(Level.WARN, subject, message, advice)


def fail(subject: str, message: str, advice: str = "") -> Finding:
    return Finding(Level.FAIL, subject, message, advice)
