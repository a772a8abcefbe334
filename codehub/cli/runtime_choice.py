"""Which runtime `codehub up` uses, and what becomes of containers on the one that was used before."""

import asyncio
import shutil
import signal
import sys
from pathlib import Path
from typing import Literal, get_args

import typer

from codehub.cli import data_directory, ide
from codehub.cli.errors import CommandError
from codehub.coordinator.main import docker_options, make_runtime
from codehub.domain.images import offered_images
from codehub.domain.observation import Unknown
from codehub.domain.states import ErrorReason
from codehub.runtimes.base import RuntimeFailure, Unobservable
from codehub.runtimes.process.runtime import ProcessRuntime
from codehub.runtimes.process.sandbox import SYSTEM_PATH
from codehub.settings import Settings

Kind = Literal["process", "docker"]


async def choose(settings: Settings, *, auto: bool) -> Kind:
    """The runtime that was asked for or, with `auto`, Docker when its engine answers."""
    if not auto and settings.runtime == "process":
        return "process"
    try:
        await engine(settings)
    except RuntimeFailure as failure:
        if not auto:
            raise CommandError(
                f"Docker was asked for, but {failure.message}. Start an engine that fits (DOCKER_HOST names "
                "another one), or use --runtime process"
            ) from failure
        if last_runtime(settings.data_dir) == "docker":
            raise CommandError(
                f"the workspaces of {settings.data_dir} run on Docker, but {failure.message}. Start the "
                "engine, or leave Docker with --runtime process"
            ) from failure
        typer.echo(f"Workspaces will run as processes: {failure.message}", err=True)
        return "process"
    return "docker"


async def engine(settings: Settings) -> str:
    """The Docker Engine's version; RuntimeFailure when there is none that workspaces can run on."""
    if _socket_is_missing(settings):
        message = f"the Docker engine at {settings.docker_host} does not answer (there is no such socket)"
        raise RuntimeFailure(ErrorReason.Unreachable, message)
    from codehub.runtimes.docker.runtime import DockerRuntime

    runtime = DockerRuntime("", docker_options(settings))
    try:
        return await runtime.check()
    finally:
        await runtime.close()


async def stop_other_runtime(settings: Settings) -> None:
    """End the containers of the runtime that is not used any more: two of them would share a home."""
    left: Kind = "process" if settings.runtime == "docker" else "docker"
    installation_id = data_directory.installation_id(settings.data_dir)
    if installation_id is None or (left == "docker" and last_runtime(settings.data_dir) != "docker"):
        return
    try:
        ended = await delete_all_containers(settings.model_copy(update={"runtime": left}), installation_id)
    except (RuntimeFailure, Unobservable) as trouble:
        raise CommandError(
            f"workspaces may still run on the {left} runtime, where they cannot be stopped ({trouble}). Use "
            f"--runtime {left}; or, when none can run any more, remove {_note(settings.data_dir)}"
        ) from trouble
    if ended:
        typer.echo(f"Stopped {ended} workspaces that ran on the {left} runtime", err=True)


async def delete_all_containers(settings: Settings, installation_id: str) -> int:
    """Delete every container of one runtime; how many ran. Homes are not touched.

    One that cannot be ended keeps none of the others, and is told of afterwards.
    """
    runtime = make_runtime(settings, installation_id)
    troubles: list[RuntimeFailure] = []
    try:
        found = await runtime.observe()
        for workspace_id in found:
            try:
                await runtime.delete(workspace_id)
            except RuntimeFailure as trouble:
                troubles.append(RuntimeFailure(trouble.reason, f"{workspace_id}: {trouble.message}"))
        if troubles:
            raise troubles[0]
        if not isinstance(runtime, ProcessRuntime):
            await runtime.release_resources()
        return sum(not isinstance(fact, Unknown) and fact.running for fact in found.values())
    finally:
        await runtime.close()


async def prepare(settings: Settings) -> None:
    """What a runtime needs before the first workspace, and a word about what will take its time."""
    if settings.runtime == "process":
        runtime = ProcessRuntime(
            settings.data_dir / "runtime", settings.tools_dir, insecure=settings.insecure_process_runtime
        )
        await runtime.barriers()
        await _ensure_ide(settings)
        return
    from codehub.runtimes.docker.runtime import DockerRuntime

    docker = DockerRuntime("", docker_options(settings))
    try:
        offered = offered_images(settings.images_text, settings.runtime).values()
        wanted = {image.docker for image in offered if image.docker is not None}
        for reference in await docker.missing_images(sorted(wanted)):
            typer.echo(
                f"The image {reference} is not on the Docker engine: the first start pulls it "
                "(`make image` makes it where no registry can be reached)",
                err=True,
            )
    finally:
        await docker.close()


def share_sockets(settings: Settings) -> None:
    """Let the gateway's user connect to process workspaces that started when the gateway ran as root."""
    if settings.runtime == "process":
        runtime = make_runtime(settings, "")
        assert isinstance(runtime, ProcessRuntime)
        runtime.share_sockets()


def _socket_is_missing(settings: Settings) -> bool:
    path = settings.docker_host.removeprefix("unix://")
    return path != settings.docker_host and not Path(path).exists()


def last_runtime(data_dir: Path) -> Kind | None:
    """The runtime that the last `up` of this data directory used."""
    try:
        noted = _note(data_dir).read_text().strip()
    except FileNotFoundError:
        return None
    return next((kind for kind in get_args(Kind) if kind == noted), None)


def save_runtime(data_dir: Path, kind: Kind) -> None:
    _note(data_dir).write_text(f"{kind}\n")


def _note(data_dir: Path) -> Path:
    return data_dir / "runtime" / "chosen"


async def _ensure_ide(settings: Settings) -> None:
    """Install code-server where an image wants it and it is not there: in a process of its own, which an
    interrupt ends with everything that it has started."""
    offered = offered_images(settings.images_text, "process").values()
    wanted = any(image.process is not None and image.process[0] == "code-server" for image in offered)
    there = ide.code_server_command(settings.tools_dir) or shutil.which("code-server", path=SYSTEM_PATH)
    if not wanted or there:
        return
    typer.echo(f"code-server is not in {settings.tools_dir} yet: installing it, once", err=True)
    command = (sys.executable, "-m", "codehub", "ide", "install", "--tools-dir", str(settings.tools_dir))
    child = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.DEVNULL)
    try:
        code = await child.wait()
    except asyncio.CancelledError:
        child.send_signal(signal.SIGINT)
        await child.wait()
        raise
    if code != 0:
        raise CommandError("code-server could not be installed; `codehub ide install` tries it again")
