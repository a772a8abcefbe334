"""A running workspace, as far as measurements of its resources need it."""

from dataclasses import dataclass

from codehub.domain.awake import CpuHold
from codehub.domain.disk import HomeSize


@dataclass(frozen=True)
class RunningWorkspace:
    id: str
    awake_cpu_percent: int | None
    """CPU use above which it stays awake. None: the default of the installation."""
    home: HomeSize | None
    """Its home as last measured, without the largest entries."""
    cpu_hold: CpuHold | None
