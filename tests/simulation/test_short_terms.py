"""Leadership terms that are shorter than the longest interval of a component."""

import asyncio

from codehub.domain.problems import Problem
from tests.simulation.clock import VirtualLoop
from tests.simulation.history import History, run

TERM = 600.0
TERMS = 4


class ShortTerms(History):
    """A history without other faults, in which each term is shorter than the GC interval."""

    def __init__(self, seed: int, loop: VirtualLoop) -> None:
        super().__init__(seed, loop)
        self.settings = self.settings.model_copy(update={"coordinator_gc_interval": TERMS * TERM})
        self.faults.rate = 0.0

    async def _inject_faults(self) -> None:
        for _ in range(TERMS):
            await asyncio.sleep(TERM)
            self._check_coordinators()
            self._delete_one()
            for coordinator in self.running_coordinators():
                self._stop_coordinator(coordinator)
                self._start_coordinator()

    def _delete_one(self) -> None:
        for name, row in self.database.rows.items():
            try:
                if row.deleted_at is None:
                    self.gate.delete(name)
                    return
            except Problem:
                continue

    async def _wait_until_settled(self) -> None:
        assert any(row.purged_at is not None for row in self.database.rows.values())


def test_the_trash_is_purged_by_leaders_of_short_terms() -> None:
    run(1, ShortTerms)
