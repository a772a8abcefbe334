"""Time, chance and fresh names: what a simulation puts in place of the real ones."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from codehub.clock import utc_now
from codehub.database.gate import new_id


@dataclass(frozen=True)
class ClockAndIds:
    clock: Callable[[], datetime]
    new_id: Callable[[], str]
    jitter: Callable[[], float]
    """Evenly from [0, 1)."""


REAL = ClockAndIds(utc_now, new_id, random.random)
