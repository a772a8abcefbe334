"""How many workspaces may run at once. Exact: counted and decided under one lock."""

from dataclasses import dataclass

from codehub.domain.problems import RunningLimitExceeded


@dataclass(frozen=True)
class Limits:
    per_user: int
    everyone: int


@dataclass(frozen=True)
class Usage:
    """Workspaces that count, the one in question left out."""

    user: int
    everyone: int


def admit(usage: Usage, limits: Limits) -> None:
    """Raise RunningLimitExceeded unless one more workspace may run."""
    if usage.user >= limits.per_user:
        raise RunningLimitExceeded(
            f"You already run {usage.user} of {limits.per_user} workspaces. Stop one first."
        )
    if usage.everyone >= limits.everyone:
        raise RunningLimitExceeded(
            f"All {limits.everyone} places of this installation are taken. Try again when one is free."
        )
