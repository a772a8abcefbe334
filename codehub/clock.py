"""Where a process gets the time from. Everything below its entrance takes it as a parameter."""

from datetime import UTC, datetime


def utc_now() -> datetime:
    return datetime.now(UTC)
