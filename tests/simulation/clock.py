"""Virtual time: an event loop that advances to its next timer instead of waiting for it."""

import asyncio
import selectors
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

START = datetime(2026, 1, 1, tzinfo=UTC)


class NothingScheduled(Exception):  # noqa: N818 - a fact about a history
    """Nothing is ready and no timer is set, so the history would hang."""


class _InstantSelector(selectors.BaseSelector):
    def __init__(self) -> None:
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise NothingScheduled
        self.now += max(0.0, timeout)
        return []

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return selectors.SelectorKey(fileobj, 0, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return selectors.SelectorKey(fileobj, 0, 0, None)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return {}


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._virtual_time = _InstantSelector()
        super().__init__(self._virtual_time)

    def time(self) -> float:
        return self._virtual_time.now

    def utc_now(self) -> datetime:
        return START + timedelta(seconds=self._virtual_time.now)
