"""`codehub down`: the other end of `codehub up`."""

import contextlib
import os
import signal
from pathlib import Path

import typer

from codehub.cli import data_directory, data_lock, runtime_choice
from codehub.cli.errors import CommandError
from codehub.embedded.server_processes import wait_until
from codehub.host.processes import ProcessId
from codehub.runtimes.base import Unobservable
from codehub.settings import Settings

STOP_SECONDS = 180.0


def stop_system(data_dir: Path) -> None:
    """Ends the `up` of a data directory and returns when it has ended."""
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
    """Ends every workspace of a system that has stopped. Homes stay; the next `up` starts them again."""
    if data_lock.holder_pid(settings.data_dir) is not None:
        raise CommandError("CodeHub is running again, and would start its workspaces again")
    kind = runtime_choice.last_runtime(settings.data_dir) or settings.runtime
    used = settings.model_copy(update={"runtime": kind})
    try:
        ended = await runtime_choice.delete_all_containers(used, data_directory.installation_id(settings.data_dir) or "")
    except Unobservable as trouble:
        raise CommandError(f"the workspaces cannot be looked at: {trouble.message}") from trouble
    typer.echo(f"{ended} workspace{'' if ended == 1 else 's'} stopped")
