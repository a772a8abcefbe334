"""Commands in workspaces beside the same programs without CodeHub, on both runtimes."""

import asyncio
import itertools
import statistics
import subprocess
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from bench import machine, table
from bench.commands.workspaces import WORKSPACE, CommandWorkspace, docker_workspace, process_workspace
from codehub.host.processes import processes_with_argument
from codehub.runtimes.command_runtime import CommandRuntime
from codehub.runtimes.exec_directory import STDOUT
from codehub.runtimes.exec_request import ExecRequest

ALLOWED_MS = 30
LEAST_RATE = 0.5
MONITORS = 50
GIGABYTE = 10**9
_PIECE = 1 << 20
_ids = itertools.count()

RUNTIMES: dict[str, Callable[[Path], AbstractAsyncContextManager[CommandWorkspace]]] = {
    "the process runtime": process_workspace,
    "Docker": docker_workspace,
}


def measure(directory: Path, rounds: int, scale: float) -> None:
    """Measure on both runtimes. The kernel's noise is too large for one command, so many run in turns."""
    for name, workspace in RUNTIMES.items():
        asyncio.run(_measure(name, workspace(directory), rounds, int(GIGABYTE * scale)))


async def _measure(
    name: str, workspace: AbstractAsyncContextManager[CommandWorkspace], rounds: int, size: int
) -> None:
    async with workspace as running:
        await _compare_true(name, running, rounds * 10)
        await _compare_output(name, running, rounds, size)
        await _show_memory(name, running.commands)


async def _compare_true(name: str, workspace: CommandWorkspace, rounds: int) -> None:
    ways: dict[str, Callable[[], Awaitable[None]]] = {
        peer: lambda command=command: asyncio.to_thread(_run, [*command, "true"])  # type: ignore[misc]
        for peer, command in workspace.peers.items()
    }
    ways["CodeHub"] = lambda: _run_true(workspace.commands)
    samples = await _in_turns(ways, rounds)
    medians = {way: statistics.median(values) for way, values in samples.items()}
    first = next(iter(workspace.peers))
    rows = [
        [way, table.median_and_range([value * 1000 for value in values], 1),
         f"{(medians[way] - medians[first]) * 1000:+.1f}"]
        for way, values in samples.items()
    ]  # fmt: skip
    title = f"`true` on {name}, from the request to the exit code, {rounds} times"
    table.print_table(title, ("way", "ms (min–max)", f"ms more than {first}"), rows)
    more = (medians["CodeHub"] - medians[first]) * 1000
    bound = f"`true` on {name} at most {ALLOWED_MS} ms more than {first}"
    table.print_bound(bound, f"{more:+.1f}", more <= ALLOWED_MS)


async def _in_turns(ways: dict[str, Callable[[], Awaitable[None]]], rounds: int) -> dict[str, list[float]]:
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


async def _run_true(commands: CommandRuntime) -> None:
    exec_id = await _start(commands, ["true"])
    async for _ in commands.follow_output(WORKSPACE, exec_id, STDOUT, 0):
        pass
    found = await commands.find_command(WORKSPACE, exec_id)
    assert found is not None and found.exit_code == 0, found


async def _start(commands: CommandRuntime, command: list[str]) -> str:
    exec_id = f"bench-{next(_ids)}"
    await commands.start_command(WORKSPACE, ExecRequest(exec_id, command))
    return exec_id


async def _compare_output(name: str, workspace: CommandWorkspace, rounds: int, size: int) -> None:
    size -= size % _PIECE
    command = ["dd", "if=/dev/zero", f"bs={_PIECE}", f"count={size // _PIECE}"]
    received: list[int] = []

    async def through_codehub() -> None:
        received.append(await _follow(workspace.commands, command, size))

    ways: dict[str, Callable[[], Awaitable[None]]] = {
        "a bare pipe": lambda: asyncio.to_thread(_read_all, command, size),
        **{
            peer: lambda prefix=prefix: asyncio.to_thread(_read_all, [*prefix, *command], size)  # type: ignore[misc]
            for peer, prefix in workspace.peers.items()
        },
        "CodeHub": through_codehub,
    }
    samples = await _in_turns(ways, rounds)
    rates = {way: size / statistics.median(values) / 1e6 for way, values in samples.items()}
    rows = [[way, f"{rate:,.0f}", table.ratio(rate, rates["a bare pipe"])] for way, rate in rates.items()]
    title = f"{size / 1e6:,.0f} MB of output on {name}"
    table.print_table(title, ("way", "MB/s", "x a bare pipe"), rows)
    print(
        f"\nThe reader got {min(received) / size:.0%} of the bytes or more: it never holds the command back."
    )
    reached = rates["CodeHub"] / rates["a bare pipe"]
    bound = f"output on {name} at least {LEAST_RATE} x a bare pipe"
    table.print_bound(bound, f"{reached:.2f}", reached >= LEAST_RATE)


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


async def _follow(commands: CommandRuntime, command: list[str], size: int) -> int:
    """Return how many bytes a reader got."""
    exec_id = await _start(commands, command)
    received = 0
    async for piece in commands.follow_output(WORKSPACE, exec_id, STDOUT, 0):
        received += len(piece.data)
    found = await commands.find_command(WORKSPACE, exec_id)
    assert found is not None and (found.exit_code, found.stdout_bytes) == (0, size), found
    return received


async def _show_memory(name: str, commands: CommandRuntime) -> None:
    ids = [await _start(commands, ["cat"]) for _ in range(MONITORS)]
    monitors = [process.pid for exec_id in ids for process in processes_with_argument(exec_id)]
    megabytes = machine.memory_of(monitors)
    for exec_id in ids:
        await commands.kill_command(WORKSPACE, exec_id, "Bench")
    row = [str(len(monitors)), f"{megabytes:.1f}", f"{megabytes / len(monitors):.2f}"]
    title = f"Memory of the monitors of {MONITORS} commands on {name}"
    table.print_table(title, ("monitors", "MB (shared memory counts once)", "MB each"), [row])
