"""The clock of a process. Functions below its entry points take the time as a parameter."""

from datetime import UTC, datetime


def utc_now() -> datetime:
    return datetime.now(UTC)
