"""Sources of time, randomness and ids, which the simulation makes deterministic (ADR 0008)."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from codehub.clock import utc_now
from codehub.ulids import new_id


@dataclass(frozen=True)
class ClockAndIds:
    clock: Callable[[], datetime]
    new_id: Callable[[], str]
    jitter: Callable[[], float]
    """Return a number from [0, 1)."""


REAL = ClockAndIds(utc_now, new_id, random.random)
