"""Tables that compare programs in a workspace with the same programs without CodeHub."""

import asyncio
import statistics
import subprocess
import time
from collections.abc import Awaitable, Callable

from bench import table

ALLOWED_MS = 30
LEAST_RATE = 0.5
BARE_PIPE = "a bare pipe"
DOCKER_EXEC = "docker exec"
_PIECE = 1 << 20

Ways = dict[str, Callable[[], Awaitable[None]]]
Peers = dict[str, list[str]]
"""Command lines that run a program in the workspace without CodeHub."""


async def compare_true(where: str, peers: Peers, codehub: Callable[[], Awaitable[None]], rounds: int) -> None:
    """Compare how long `true` takes. `codehub` returns once it has the exit code."""
    ways: Ways = {
        peer: lambda command=command: asyncio.to_thread(_run, [*command, "true"])  # type: ignore[misc]
        for peer, command in peers.items()
    }
    samples = await _in_turns(ways | {"CodeHub": codehub}, rounds)
    medians = {way: statistics.median(values) for way, values in samples.items()}
    first = next(iter(peers))
    rows = [
        [way, table.median_and_range([value * 1000 for value in values], 1),
         f"{(medians[way] - medians[first]) * 1000:+.1f}"]
        for way, values in samples.items()
    ]  # fmt: skip
    title = f"`true` on {where}, from the request to the exit code, {rounds} times"
    table.print_table(title, ("way", "ms (min–max)", f"ms more than {first}"), rows)
    more = (medians["CodeHub"] - medians[first]) * 1000
    bound = f"`true` on {where} at most {ALLOWED_MS} ms more than {first}"
    table.print_bound(bound, f"{more:+.1f}", more <= ALLOWED_MS)


async def compare_output(
    where: str, peers: Peers, codehub: Callable[[list[str], int], Awaitable[int]], rounds: int, size: int
) -> None:
    """Compare rates of output. `codehub` runs a command that writes so much, and returns what it read."""
    size -= size % _PIECE
    command = ["dd", "if=/dev/zero", f"bs={_PIECE}", f"count={size // _PIECE}"]
    received: list[int] = []

    async def through_codehub() -> None:
        received.append(await codehub(command, size))

    bare: Peers = {BARE_PIPE: []}
    ways: Ways = {
        peer: lambda prefix=prefix: asyncio.to_thread(_read_all, [*prefix, *command], size)  # type: ignore[misc]
        for peer, prefix in (bare | peers).items()
    }
    samples = await _in_turns(ways | {"CodeHub": through_codehub}, rounds)
    rates = {way: size / statistics.median(values) / 1e6 for way, values in samples.items()}
    references = [way for way in (BARE_PIPE, DOCKER_EXEC) if way in rates]
    rows = [
        [way, f"{rate:,.0f}", *(table.ratio(rate, rates[reference]) for reference in references)]
        for way, rate in rates.items()
    ]
    title = f"{size / 1e6:,.0f} MB of output on {where}"
    table.print_table(title, ("way", "MB/s", *(f"x {reference}" for reference in references)), rows)
    print(f"\nThe reader got {min(received) / size:.0%} of the bytes or more.")
    reference = references[-1]  # nothing that uses the engine reaches a bare pipe
    reached = rates["CodeHub"] / rates[reference]
    bound = f"output on {where} at least {LEAST_RATE} x {reference}"
    table.print_bound(bound, f"{reached:.2f}", reached >= LEAST_RATE)


async def _in_turns(ways: Ways, rounds: int) -> dict[str, list[float]]:
    samples: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(rounds + 1):
        for way, run in ways.items():
            began = time.perf_counter()
            await run()
            if turn:  # the first turn fills caches
                samples[way].append(time.perf_counter() - began)
    return samples


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)


def _read_all(command: list[str], size: int) -> None:
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0
    ) as process:
        output = process.stdout
        assert output is not None
        read = 0
        while piece := output.read(_PIECE):
            read += len(piece)
    assert read == size, read
