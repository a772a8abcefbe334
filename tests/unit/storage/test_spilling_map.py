"""The spilling map behaves like a dict, in bounded memory."""

import builtins
import sys
import tracemalloc
from collections.abc import Callable

import pytest

from codehub.storage.tar.spilling_map import SpillingMap


def key(number: int) -> bytes:
    return number.to_bytes(16, "big")


@pytest.mark.parametrize("in_memory", [0, 3, 100])
def test_the_map_behaves_like_a_dict_in_memory_and_in_a_file(in_memory: int) -> None:
    seen = SpillingMap(in_memory)
    assert all(seen.add(key(number), number % 5) for number in range(20))
    assert not any(seen.add(key(number), 9) for number in range(20))
    assert [seen.get(key(number)) for number in range(20)] == [number % 5 for number in range(20)]
    assert seen.get(key(20)) is None


def test_memory_is_bounded() -> None:
    seen = SpillingMap(in_memory=100)
    tracemalloc.start()
    try:
        assert all(seen.add(key(number), 1) for number in range(50_000))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert seen.get(key(49_999)) == 1


def test_a_python_without_sqlite_holds_everything_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "sqlite3", raising=False)
    real: Callable[..., object] = builtins.__import__

    def without(name: str, *rest: object, **options: object) -> object:
        if name == "sqlite3":
            raise ImportError(name)
        return real(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    seen = SpillingMap(in_memory=1)
    assert [seen.add(key(number), number) for number in (1, 2, 3, 2)] == [True, True, True, False]
    assert seen.get(key(3)) == 3
