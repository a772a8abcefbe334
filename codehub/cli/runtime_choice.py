"""Choice of the runtime of `codehub up`, and cleanup of the runtime that it used before."""

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
from codehub.domain.observation import Unknown
from codehub.domain.states import ErrorReason
from codehub.images_file import offered_images
from codehub.runtimes.base import RuntimeFailure, RuntimeUnobservable
from codehub.runtimes.process.runtime import ProcessRuntime
from codehub.runtimes.process.sandbox import SYSTEM_PATH
from codehub.settings import Settings

RuntimeKind = Literal["process", "docker"]


async def choose(settings: Settings, *, auto: bool) -> RuntimeKind:
    """Return the requested runtime. With `auto`, return Docker if its engine answers."""
    if not auto and settings.runtime == "process":
        return "process"
    try:
        await docker_version(settings)
    except RuntimeFailure as failure:
        if not auto:
            raise CommandError(
                f"Docker was requested, but {failure.message}. Start a suitable engine (DOCKER_HOST names "
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


async def docker_version(settings: Settings) -> str:
    """Return the version of the Docker Engine, or raise RuntimeFailure if it is unsuitable."""
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
    """Delete the containers of the runtime that is no longer used.

    Two containers would share a home.
    """
    other: RuntimeKind = "process" if settings.runtime == "docker" else "docker"
    installation_id = data_directory.installation_id(settings.data_dir)
    if installation_id is None or (other == "docker" and last_runtime(settings.data_dir) != "docker"):
        return
    try:
        ended = await delete_all_containers(settings.model_copy(update={"runtime": other}), installation_id)
    except (RuntimeFailure, RuntimeUnobservable) as problem:
        raise CommandError(
            f"workspaces may still run on the {other} runtime, and cannot be stopped there ({problem}). Use "
            f"--runtime {other}. If no workspace runs there, remove {_record_file(settings.data_dir)}"
        ) from problem
    if ended:
        typer.echo(f"Stopped {ended} workspaces that ran on the {other} runtime", err=True)


async def delete_all_containers(settings: Settings, installation_id: str) -> int:
    """Delete every container of one runtime, and return how many ran. Homes are not touched.

    If a container cannot be deleted, the others are deleted first, and then its error is raised.
    """
    runtime = make_runtime(settings, installation_id)
    failures: list[RuntimeFailure] = []
    try:
        found = await runtime.observe()
        for workspace_id in found:
            try:
                await runtime.delete(workspace_id)
            except RuntimeFailure as failure:
                failures.append(RuntimeFailure(failure.reason, f"{workspace_id}: {failure.message}"))
        if failures:
            raise failures[0]
        if not isinstance(runtime, ProcessRuntime):
            await runtime.release_resources()
        return sum(not isinstance(fact, Unknown) and fact.running for fact in found.values())
    finally:
        await runtime.close()


async def prepare(settings: Settings) -> None:
    """Prepare the runtime for the first workspace, and announce what will take long."""
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
                "(`make image` builds it if no registry can be reached)",
                err=True,
            )
    finally:
        await docker.close()


def share_sockets(settings: Settings) -> None:
    """Let the gateway's user connect to workspaces that started when the gateway was root."""
    if settings.runtime == "process":
        runtime = make_runtime(settings, "")
        assert isinstance(runtime, ProcessRuntime)
        runtime.share_sockets()


def _socket_is_missing(settings: Settings) -> bool:
    path = settings.docker_host.removeprefix("unix://")
    return path != settings.docker_host and not Path(path).exists()


def last_runtime(data_dir: Path) -> RuntimeKind | None:
    """Return the runtime that the last `up` of this data directory used, or None."""
    try:
        recorded = _record_file(data_dir).read_text().strip()
    except FileNotFoundError:
        return None
    return next((kind for kind in get_args(RuntimeKind) if kind == recorded), None)


def save_runtime(data_dir: Path, kind: RuntimeKind) -> None:
    _record_file(data_dir).write_text(f"{kind}\n")


def _record_file(data_dir: Path) -> Path:
    return data_dir / "runtime" / "chosen"


async def _ensure_ide(settings: Settings) -> None:
    """Install code-server if an image needs it and it is missing.

    A child process installs it, so that an interrupt also ends everything that the install has
    started.
    """
    offered = offered_images(settings.images_text, "process").values()
    is_needed = any(image.process is not None and image.process[0] == "code-server" for image in offered)
    is_there = ide.code_server_command(settings.tools_dir) or shutil.which("code-server", path=SYSTEM_PATH)
    if not is_needed or is_there:
        return
    typer.echo(f"code-server is not in {settings.tools_dir} yet: installing it", err=True)
    command = (sys.executable, "-m", "codehub", "ide", "install", "--tools-dir", str(settings.tools_dir))
    child = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.DEVNULL)
    try:
        code = await child.wait()
    except asyncio.CancelledError:
        child.send_signal(signal.SIGINT)
        await child.wait()
        raise
    if code != 0:
        raise CommandError("code-server could not be installed; to retry, run `codehub ide install`")
