"""Leaders that come and go more often than the slowest of their rhythms."""

import asyncio

from codehub.domain.problems import Problem
from tests.simulation.clock import VirtualLoop
from tests.simulation.history import History, run

TERM = 600.0
TERMS = 4


class ShortTerms(History):
    """No faults but this: no leader lives as long as one interval of GC."""

    def __init__(self, seed: int, loop: VirtualLoop) -> None:
        super().__init__(seed, loop)
        self.settings = self.settings.model_copy(update={"coordinator_gc_interval": TERMS * TERM})
        self.faults.rate = 0.0

    async def _troubles(self) -> None:
        for _ in range(TERMS):
            await asyncio.sleep(TERM)
            self._check_members()
            self._delete_one()
            for member in self.living():
                self._end(member)
                self._start_coordinator()

    def _delete_one(self) -> None:
        for name, row in self.database.rows.items():
            try:
                if row.deleted_at is None:
                    self.gate.delete(name)
                    return
            except Problem:
                continue

    async def _peace(self) -> None:
        assert any(row.purged_at is not None for row in self.database.rows.values())


def test_the_trash_is_purged_by_leaders_of_short_terms() -> None:
    run(1, ShortTerms)
