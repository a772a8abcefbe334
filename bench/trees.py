"""Homes to measure with: the same bytes on every machine."""

import random
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import TypeVar

MEGABYTE = 1 << 20
POOL_BYTES = 24 * MEGABYTE

Word = TypeVar("Word", str, bytes)


def mixed(home: Path, scale: float) -> None:
    """About 2 GB: sources and packages, programs, media that do not compress, a few large files."""
    rng = random.Random(1)
    text, code = _text(rng), _machine_code(rng)
    for path in _paths(home / "src", int(45_000 * scale), 40):
        path.write_bytes(_slice(text, rng, int(rng.lognormvariate(8.6, 1.1))))
    for path in _paths(home / "bin", max(1, int(80 * scale)), 40):
        path.write_bytes(_slice(code, rng, int(rng.uniform(8, 12) * MEGABYTE)))
    for path in _paths(home / "media", int(700 * scale), 30):
        path.write_bytes(rng.randbytes(int(rng.uniform(0.1, 1.0) * MEGABYTE)))
    for path in _paths(home / "data", max(1, int(24 * scale)), 12):
        path.write_bytes(b"".join(_slice(text, rng, MEGABYTE) for _ in range(16)))


def small_files(home: Path, scale: float) -> None:
    """200,000 files of 1 KB, 40 in a directory."""
    rng = random.Random(2)
    text = _text(rng)
    for path in _paths(home / "node_modules", int(200_000 * scale), 40):
        path.write_bytes(_slice(text, rng, int(rng.lognormvariate(6.6, 1.0))))


def _text(rng: random.Random) -> bytes:
    """A language that nobody speaks; it compresses about as sources do, and as fast."""
    words = ["".join(rng.choices("etaoinsrhldcumfpgwyb", k=rng.randint(2, 11))) for _ in range(4000)]
    return " ".join(_talk(rng, [" ".join(phrase) for phrase in _phrases(rng, words)], 0.6)).encode()


def _machine_code(rng: random.Random) -> bytes:
    """A processor that nobody builds; its code compresses about as programs do, and as fast."""
    instructions = [rng.randbytes(rng.randint(1, 9)) for _ in range(6000)]
    return b"".join(_talk(rng, [b"".join(phrase) for phrase in _phrases(rng, instructions)], 0.3))


def _phrases(rng: random.Random, words: list[Word]) -> list[list[Word]]:
    """Few words are frequent and most are rare, as everywhere."""
    weights = _weights(len(words), 1.0)
    return [rng.choices(words, cum_weights=weights, k=rng.randint(2, 20)) for _ in range(40_000)]


def _talk(rng: random.Random, phrases: list[Word], bias: float) -> list[Word]:
    count = POOL_BYTES * len(phrases) // sum(map(len, phrases))
    return rng.choices(phrases, cum_weights=_weights(len(phrases), bias), k=count)


def _weights(count: int, bias: float) -> list[float]:
    return list(accumulate(rank**-bias for rank in range(1, count + 1)))


def _slice(pool: bytes, rng: random.Random, size: int) -> bytes:
    size = min(size, len(pool) // 2)
    start = rng.randrange(len(pool) - size)
    return pool[start : start + size]


def _paths(root: Path, count: int, per_directory: int) -> Iterator[Path]:
    for number in range(count):
        directory = root / f"group-{number // per_directory // 25}" / f"part-{number // per_directory}"
        if number % per_directory == 0:
            directory.mkdir(parents=True, exist_ok=True)
        yield directory / f"file-{number}.txt"
