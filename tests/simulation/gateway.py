"""A simulated gateway worker: what it sees of the workspaces' use, and hands over now and then."""

import asyncio
from dataclasses import dataclass, field

from tests.simulation.database import Database
from tests.simulation.redis import Redis


@dataclass
class Gateway:
    """`codehub.gateway.handover` and its recorder."""

    name: str
    database: Database
    redis: Redis
    interval: float
    seen: dict[str, float] = field(default_factory=dict)
    alive: bool = True

    def __post_init__(self) -> None:
        self.database.hear(self.name)

    def touch(self, workspace_id: str) -> None:
        now = self.database.now().timestamp()
        self.seen[workspace_id] = self.database.reality.used_at[workspace_id] = now

    async def run(self) -> None:
        while self.alive:
            await asyncio.sleep(self.interval)
            self.hand_over()

    def hand_over(self) -> bool:
        """A Redis that answers may still refuse what is written, and a database the heartbeat."""
        down = self.database.reality.is_down
        if not self.alive or down("redis") or down("flush"):
            return False
        for workspace_id, at in self.seen.items():
            self.redis.flush(workspace_id, at)
        self.seen.clear()
        if not down("database"):
            self.database.hear(self.name)
        return True

    def end(self) -> None:
        """Told to stop."""
        if self.hand_over():
            self.database.silent_since.pop(self.name, None)
        self.alive = False

    def kill(self) -> None:
        self.alive = False
