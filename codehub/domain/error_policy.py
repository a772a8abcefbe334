"""Error policy: which failures end in ERROR at once, which are retried, and when."""

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
"""After a container has been ready this long, earlier failures no longer count."""


@dataclass(frozen=True)
class RetryPolicy:
    max_retries: int = 3
    backoff: timedelta = timedelta(seconds=30)


@dataclass(frozen=True)
class Failure:
    """Failure of a workspace. The message says what a person can do about it."""

    reason: ErrorReason
    message: str


@dataclass(frozen=True)
class FailureOutcome:
    """Error fields of a workspace after a failure."""

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
    """Return the error fields after one more failure. `count` is the number of earlier ones.

    `jitter` is in [0, 1).
    """
    count += 1
    if failure.reason in AT_ONCE:
        return FailureOutcome(failure.reason, count, failure.message, None)
    if count >= policy.max_retries:
        message = f"{failure.message} (tried {count} times)"
        return FailureOutcome(ErrorReason.RetryExceeded, count, message, None)
    return FailureOutcome(failure.reason, count, failure.message, now + retry_delay(count, policy, jitter))


def retry_delay(count: int, policy: RetryPolicy, jitter: float) -> timedelta:
    """Return the pause before a retry: a tenth of the back-off first, then doubling from it.

    The jitter adds up to a quarter.
    """
    base = policy.backoff / 10 if count <= 1 else policy.backoff * 2 ** (count - 2)
    return base * (1 + jitter / 4)


def waits_for_retry(next_retry_at: datetime | None, policy: RetryPolicy, now: datetime) -> bool:
    """Return whether the time of the next retry is still to come.

    A time further ahead than the longest pause counts as due: the clock was set back since.
    """
    if next_retry_at is None:
        return False
    longest = max(policy.backoff, retry_delay(policy.max_retries, policy, 1.0))
    return now < next_retry_at <= now + longest
