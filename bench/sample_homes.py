"""Sample homes, with the same bytes on every machine."""

import random
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import TypeVar

MEGABYTE = 1 << 20
POOL_BYTES = 24 * MEGABYTE

Token = TypeVar("Token", str, bytes)


def fill_mixed(home: Path, scale: float) -> None:
    """Write about 2 GB: sources, programs, media that do not compress, and a few large files."""
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


def fill_small_files(home: Path, scale: float) -> None:
    """Write 200,000 files of 1 KB, 40 in a directory."""
    rng = random.Random(2)
    text = _text(rng)
    for path in _paths(home / "node_modules", int(200_000 * scale), 40):
        path.write_bytes(_slice(text, rng, int(rng.lognormvariate(6.6, 1.0))))


def _text(rng: random.Random) -> bytes:
    """Return random text that compresses about as well, and as fast, as source code."""
    words = ["".join(rng.choices("etaoinsrhldcumfpgwyb", k=rng.randint(2, 11))) for _ in range(4000)]
    return " ".join(
        _random_sequence(rng, [" ".join(phrase) for phrase in _phrases(rng, words)], 0.6)
    ).encode()


def _machine_code(rng: random.Random) -> bytes:
    """Return random bytes that compress about as well, and as fast, as programs."""
    instructions = [rng.randbytes(rng.randint(1, 9)) for _ in range(6000)]
    return b"".join(_random_sequence(rng, [b"".join(phrase) for phrase in _phrases(rng, instructions)], 0.3))


def _phrases(rng: random.Random, tokens: list[Token]) -> list[list[Token]]:
    """Return phrases in which few tokens are frequent and most are rare, as in real files."""
    weights = _weights(len(tokens), 1.0)
    return [rng.choices(tokens, cum_weights=weights, k=rng.randint(2, 20)) for _ in range(40_000)]


def _random_sequence(rng: random.Random, phrases: list[Token], bias: float) -> list[Token]:
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
