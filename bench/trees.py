"""Homes to archive, the same for each seed: one that is mixed, and one of many small files."""

import random
from collections.abc import Iterator
from pathlib import Path

MEGABYTE = 1 << 20
TEXT_BYTES = 24 * MEGABYTE


def mixed(home: Path, scale: float) -> None:
    """About 500 MB: sources and packages, media and binaries that do not compress, a few large files."""
    rng = random.Random(1)
    text = _text(rng)
    for path in _paths(home / "src", int(12_000 * scale), 40):
        path.write_bytes(_slice(text, rng, int(rng.lognormvariate(8.6, 1.1))))
    for path in _paths(home / "media", int(300 * scale), 30):
        path.write_bytes(rng.randbytes(int(rng.uniform(0.1, 1.0) * MEGABYTE)))
    for path in _paths(home / "data", max(1, int(12 * scale)), 12):
        path.write_bytes(b"".join(_slice(text, rng, MEGABYTE) for _ in range(16)))


def small_files(home: Path, scale: float) -> None:
    """About 50,000 files of 1 KB, 40 in a directory."""
    rng = random.Random(2)
    text = _text(rng)
    for path in _paths(home / "node_modules", int(50_000 * scale), 40):
        path.write_bytes(_slice(text, rng, int(rng.lognormvariate(6.6, 1.0))))


def _text(rng: random.Random) -> bytes:
    """Words of a language that nobody speaks; it compresses about as sources do."""
    words = ["".join(rng.choices("etaoinsrhldcumfpgwyb", k=rng.randint(2, 11))) for _ in range(4000)]
    weights = [1 / rank for rank in range(1, len(words) + 1)]
    return " ".join(rng.choices(words, weights, k=TEXT_BYTES // 7)).encode()


def _slice(text: bytes, rng: random.Random, size: int) -> bytes:
    size = min(size, len(text) // 2)
    start = rng.randrange(len(text) - size)
    return text[start : start + size]


def _paths(root: Path, count: int, per_directory: int) -> Iterator[Path]:
    for number in range(count):
        directory = root / f"group-{number // per_directory // 25}" / f"part-{number // per_directory}"
        if number % per_directory == 0:
            directory.mkdir(parents=True, exist_ok=True)
        yield directory / f"file-{number}.txt"
