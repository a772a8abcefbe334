"""A simulated Redis with the operations that activity and samples need."""

from dataclasses import dataclass, field

from codehub.domain.gateway_reports import ActivitySnapshot
from codehub.domain.resource_usage import UsageSample


@dataclass
class Redis:
    """The activity ZSET. `flushed` holds the uses that it accepted and must not lose."""

    uses: dict[str, float] = field(default_factory=dict)
    flushes: dict[str, int] = field(default_factory=dict)
    flushed: dict[str, float] = field(default_factory=dict)
    usage: dict[str, list[UsageSample]] = field(default_factory=dict)
    saved: ActivitySnapshot = field(default_factory=lambda: ActivitySnapshot({}, {}))

    def read(self) -> ActivitySnapshot:
        return ActivitySnapshot(dict(self.uses), dict(self.flushes))

    def flush(self, uses: dict[str, float], gateway: str, number: int) -> None:
        for workspace_id, at in uses.items():
            self.uses[workspace_id] = max(at, self.uses.get(workspace_id, 0.0))
            self.flushed[workspace_id] = self.uses[workspace_id]
        self.flushes[gateway] = max(number, self.flushes.get(gateway, 0))

    def save(self) -> None:
        self.saved = self.read()

    def lose(self, kept: ActivitySnapshot) -> None:
        """Restart with what is left on the disk."""
        self.uses, self.flushes = dict(kept.uses), dict(kept.flushes)
        self.flushed = dict(kept.uses)
        self.usage = {}
