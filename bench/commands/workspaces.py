"""Running workspaces for commands, on both runtimes, and how to enter them without CodeHub."""

import asyncio
import os
import shutil
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from ipaddress import IPv4Network
from pathlib import Path

from bench.commands.compare import DOCKER_EXEC, Peers
from bench.tools import MissingToolError
from codehub.domain.images import BUILT_IN
from codehub.host.processes import descendants
from codehub.runtimes.base import WorkloadSpec
from codehub.runtimes.command_runtime import CommandRefused, CommandRuntime
from codehub.runtimes.docker.container_config import name_of
from codehub.runtimes.docker.runtime import DockerOptions, DockerRuntime
from codehub.runtimes.exec_request import ExecRequest
from codehub.runtimes.process.runtime import ProcessRuntime
from codehub.runtimes.process.state_directory import StateDirectory
from tests.docker.engine import TINY, EngineMissingError, OwnEngine

WORKSPACE = "bench"
UID = 2_200_000
IMAGE = replace(BUILT_IN[0], name="bench", docker=TINY, process=("/bin/sleep", "infinity"), pids=1024)
_PATIENCE_SECONDS = 60.0


@dataclass(frozen=True)
class CommandWorkspace:
    """A running workspace, and the command lines that run a program there without CodeHub."""

    commands: CommandRuntime
    peers: Peers


def require_sandbox() -> None:
    """Raise MissingToolError unless the process runtime has its sandbox."""
    if os.geteuid() != 0 or shutil.which("bwrap") is None:
        raise MissingToolError("commands on the process runtime need root and bubblewrap")


@contextmanager
def engine() -> Iterator[OwnEngine]:
    """Start an engine with the tiny image, or raise MissingToolError."""
    try:
        started = OwnEngine()
        try:
            started.start()
            started.import_tiny()
            yield started
        finally:
            started.close()
    except EngineMissingError as missing:
        raise MissingToolError(str(missing)) from missing


@asynccontextmanager
async def process_workspace(directory: Path) -> AsyncIterator[CommandWorkspace]:
    require_sandbox()
    runtime = ProcessRuntime(directory / "runtime", directory / "tools", stop_grace=1)
    try:
        await runtime.start(_spec(directory))
        await _until_commands_run(runtime.commands)
        yield CommandWorkspace(runtime.commands, peers_of_process(directory / "runtime", WORKSPACE))
    finally:
        await runtime.delete(WORKSPACE)


@asynccontextmanager
async def docker_workspace(directory: Path) -> AsyncIterator[CommandWorkspace]:
    with engine() as own_engine:
        pool, executions = IPv4Network("10.223.0.0/16"), directory / "docker-execs"
        options = DockerOptions(own_engine.url, directory / "docker", pool, None, executions, stop_grace=1)
        runtime = DockerRuntime("bench", options)
        await runtime.start(_spec(directory))
        await _until_commands_run(runtime.commands)
        yield CommandWorkspace(runtime.commands, peers_of_container(own_engine, WORKSPACE))
        await runtime.delete(WORKSPACE)
        await runtime.close()


def peers_of_process(runtime_directory: Path, workspace_id: str) -> Peers:
    state = StateDirectory(runtime_directory / workspace_id).read_state()
    assert state is not None and state.keeper is not None
    inside = descendants(state.keeper.pid)
    return {"nsenter": _nsenter(max(inside, key=lambda process: inside[process]).pid)}


def peers_of_container(engine: OwnEngine, workspace_id: str) -> Peers:
    name = name_of(workspace_id)
    pid = int(engine.docker("inspect", "--format", "{{.State.Pid}}", name))
    return {DOCKER_EXEC: ["docker", "--host", engine.url, "exec", name], "nsenter": _nsenter(pid)}


def _spec(directory: Path) -> WorkloadSpec:
    home = directory / "home"
    if not home.exists():
        home.mkdir(mode=0o700)
        os.chown(home, UID, UID)
    return WorkloadSpec(WORKSPACE, IMAGE, home, "op", UID)


async def _until_commands_run(commands: CommandRuntime) -> None:
    """Wait for the workspace, and start what the first command starts."""
    until = time.monotonic() + _PATIENCE_SECONDS
    attempt = 0
    while True:
        attempt += 1
        exec_id = f"first-{attempt}"
        try:
            await commands.start_command(WORKSPACE, ExecRequest(exec_id, ["true"]))
            async for _ in commands.follow_output(WORKSPACE, exec_id, "stdout", 0):
                pass
            found = await commands.find_command(WORKSPACE, exec_id)
            if found is not None and found.exit_code == 0:
                return
        except CommandRefused:
            if time.monotonic() > until:
                raise
        await asyncio.sleep(0.05)


def _nsenter(pid: int) -> list[str]:
    """Return the arguments that enter the namespaces of a process, as its user."""
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    uid = next(line for line in status if line.startswith("Uid:")).split()[1]
    namespaces = ["--mount", "--pid", "--net", "--ipc", "--uts"]
    return ["nsenter", f"--target={pid}", *namespaces, f"--setuid={uid}", f"--setgid={uid}"]
