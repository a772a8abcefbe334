"""Commands in workspaces beside the same programs without CodeHub, on both runtimes."""

import asyncio
import itertools
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

from bench import machine, table
from bench.commands import over_http
from bench.commands.compare import compare_output, compare_true
from bench.commands.workspaces import WORKSPACE, CommandWorkspace, docker_workspace, process_workspace
from codehub.host.processes import processes_with_argument
from codehub.runtimes.command_runtime import CommandRuntime
from codehub.runtimes.exec_directory import STDOUT
from codehub.runtimes.exec_request import ExecRequest

MONITORS = 50
GIGABYTE = 10**9
_ids = itertools.count()

RUNTIMES: dict[str, Callable[[Path], AbstractAsyncContextManager[CommandWorkspace]]] = {
    "the process runtime": process_workspace,
    "Docker": docker_workspace,
}


def measure(directory: Path, rounds: int, scale: float) -> None:
    """Measure on both runtimes. The kernel's noise is too large for one command, so many run in turns."""
    for name, workspace in RUNTIMES.items():
        asyncio.run(_measure(name, workspace(directory), rounds, int(GIGABYTE * scale)))
    over_http.measure(directory, rounds, int(GIGABYTE * scale))


async def _measure(
    name: str, workspace: AbstractAsyncContextManager[CommandWorkspace], rounds: int, size: int
) -> None:
    async with workspace as running:
        commands, peers = running.commands, running.peers
        await compare_true(name, peers, lambda: _run_true(commands), rounds * 10)
        await compare_output(name, peers, partial(_follow, commands), rounds, size)
        await _show_memory(name, commands)


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


async def _follow(commands: CommandRuntime, command: list[str], size: int) -> int:
    """Return how many bytes a reader got: it never holds the command back."""
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
