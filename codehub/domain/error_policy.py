"""The error policy: what ends in ERROR at once, what is tried again, and when."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from codehub.domain.states import ErrorReason

AT_ONCE = frozenset(
    {
        ErrorReason.Timeout,
        ErrorReason.DataLost,
        ErrorReason.ImagePullFailed,
        ErrorReason.ContainerWithoutVolume,
        ErrorReason.ArchiveCorrupted,
    }
)
TERMINAL = AT_ONCE | {ErrorReason.RetryExceeded}

STABLE_AFTER = timedelta(minutes=10)
"""A container that stays ready this long has started for good: its earlier failures are forgiven."""


@dataclass(frozen=True)
class RetryPolicy:
    max_retries: int = 3
    backoff: timedelta = timedelta(seconds=30)


@dataclass(frozen=True)
class Failure:
    """One failure, with what a person can do about it in `message`."""

    reason: ErrorReason
    message: str


@dataclass(frozen=True)
class FailureOutcome:
    """What a failure makes of a workspace's error fields."""

    reason: ErrorReason
    count: int
    message: str
    next_retry_at: datetime | None

    @property
    def terminal(self) -> bool:
        return self.reason in TERMINAL


def is_terminal(reason: ErrorReason | None) -> bool:
    return reason in TERMINAL


def failure_outcome(
    failure: Failure, count: int, policy: RetryPolicy, now: datetime, jitter: float
) -> FailureOutcome:
    """The consequence of one more failure after `count` earlier ones. `jitter` is in [0, 1)."""
    count += 1
    if failure.reason in AT_ONCE:
        return FailureOutcome(failure.reason, count, failure.message, None)
    if count >= policy.max_retries:
        words = f"{failure.message} (tried {count} times)"
        return FailureOutcome(ErrorReason.RetryExceeded, count, words, None)
    return FailureOutcome(failure.reason, count, failure.message, now + retry_delay(count, policy, jitter))


def retry_delay(count: int, policy: RetryPolicy, jitter: float) -> timedelta:
    """Exponential from the back-off; the first retry comes in a tenth of it. Up to a quarter of jitter."""
    base = policy.backoff / 10 if count <= 1 else policy.backoff * 2 ** (count - 2)
    return base * (1 + jitter / 4)


def waits_for_retry(next_retry_at: datetime | None, policy: RetryPolicy, now: datetime) -> bool:
    """One that lies further ahead than any pause was planned before the clock was put back: it is due."""
    if next_retry_at is None:
        return False
    longest = max(policy.backoff, retry_delay(policy.max_retries, policy, 1.0))
    return now < next_retry_at <= now + longest
