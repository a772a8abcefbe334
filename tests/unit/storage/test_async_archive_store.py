"""A store that hangs does not block lookups."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from codehub.storage.archive.async_archive_store import ArchiveStore
from codehub.storage.errors import Unobservable
from tests.waiting import PATIENCE, eventually


@pytest.fixture
def hung(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Event that lets the store answer again."""
    answers = threading.Event()

    def find(*_: object) -> None:
        answers.wait(PATIENCE)

    monkeypatch.setattr("codehub.storage.archive.archives.BlockingArchiveStore.find", find)
    yield answers
    answers.set()


async def test_a_lookup_times_out_and_no_other_starts_until_it_returns(
    tmp_path: Path, hung: threading.Event
) -> None:
    store = ArchiveStore(f"file://{tmp_path}/archives", "installation-1", lookup_timeout=0.05)
    await store.initialise()
    with pytest.raises(Unobservable, match="does not answer"):
        await store.find("w1", "a1")
    patient = asyncio.create_task(store.find("w1", "a1"))
    await asyncio.sleep(0)
    assert patient.done(), "it does not wait once more"
    with pytest.raises(Unobservable, match="does not answer"):
        patient.result()
    assert await store.list() == []
    hung.set()

    async def finds_nothing() -> bool:
        try:
            return await store.find("w1", "a1") is None
        except Unobservable:
            return False

    await eventually(finds_nothing, "the store to answer again")
