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
    words: str
    advice: str = ""


def ok(subject: str, words: str) -> Finding:
    return Finding(Level.OK, subject, words)


def warn(subject: str, words: str, advice: str = "") -> Finding:
    return Finding(Level.WARN, subject, words, advice)


def fail(subject: str, words: str, advice: str = "") -> Finding:
    return Finding(Level.FAIL, subject, words, advice)
