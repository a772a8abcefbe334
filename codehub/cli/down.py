"""`codehub down`: stop a running `codehub up`, and its workspaces on request."""

import contextlib
import os
import signal
from pathlib import Path

import typer

from codehub.cli import data_directory, data_lock, runtime_choice
from codehub.cli.errors import CommandError
from codehub.embedded.server_processes import wait_until
from codehub.host.processes import ProcessId
from codehub.runtimes.base import RuntimeUnobservable
from codehub.settings import Settings

STOP_SECONDS = 180.0


def stop_system(data_dir: Path) -> None:
    """Stop the `up` of a data directory, and return once it has ended."""
    pid = data_lock.holder_pid(data_dir)
    if pid is None:
        typer.echo(f"CodeHub is not running on {data_dir}")
        return
    process = ProcessId.of(pid)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    if not wait_until(lambda: ProcessId.of(pid) != process, STOP_SECONDS, every=0.1):
        raise CommandError(f"process {pid} has not ended after {STOP_SECONDS:.0f} s")
    typer.echo("CodeHub has stopped")


async def stop_workspaces(settings: Settings) -> None:
    """Stop every workspace of a stopped system.

    Homes stay, and the next `up` starts the workspaces again.
    """
    if data_lock.holder_pid(settings.data_dir) is not None:
        raise CommandError("CodeHub is running again, and would start its workspaces again")
    kind = runtime_choice.last_runtime(settings.data_dir) or settings.runtime
    used = settings.model_copy(update={"runtime": kind})
    installation_id = data_directory.installation_id(settings.data_dir) or ""
    try:
        ended = await runtime_choice.delete_all_containers(used, installation_id)
    except RuntimeUnobservable as problem:
        raise CommandError(f"the workspaces cannot be listed: {problem.message}") from problem
    typer.echo(f"{ended} workspace{'' if ended == 1 else 's'} stopped")
