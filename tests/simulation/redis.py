"""A simulated Redis, as far as activity needs one."""

from dataclasses import dataclass, field


@dataclass
class Redis:
    """The activity ZSET. `flushed` is what the gateway has handed over, and must not be forgotten."""

    scores: dict[str, float] = field(default_factory=dict)
    flushed: dict[str, float] = field(default_factory=dict)

    def flush(self, workspace_id: str, at: float) -> None:
        self.scores[workspace_id] = max(at, self.scores.get(workspace_id, 0.0))
        self.flushed[workspace_id] = self.scores[workspace_id]

    def flushall(self) -> None:
        self.scores.clear()
        self.flushed.clear()
