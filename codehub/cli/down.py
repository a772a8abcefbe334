"""`codehub down`: the other end of `codehub up`."""

import contextlib
import os
import signal
from pathlib import Path

import typer

from codehub.cli import lock
from codehub.cli.errors import CommandError
from codehub.cli.supervisor import birth
from codehub.embedded.process import wait_until
from codehub.runtimes.process import ProcessRuntime
from codehub.settings import Settings

STOP_SECONDS = 180.0


def stop_system(data_dir: Path) -> None:
    """Ends the `up` of a data directory and returns when it has ended."""
    pid = lock.holder(data_dir)
    if pid is None:
        typer.echo(f"CodeHub is not running on {data_dir}")
        return
    born = birth(pid)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    if not wait_until(lambda: birth(pid) != born, STOP_SECONDS, every=0.1):
        raise CommandError(f"process {pid} has not ended after {STOP_SECONDS:.0f} s")
    typer.echo("CodeHub has stopped")


async def stop_workspaces(settings: Settings) -> None:
    """Ends every workspace of a system that has stopped. Homes stay; the next `up` starts them again."""
    if lock.holder(settings.data_dir) is not None:
        raise CommandError("CodeHub is running again, and would start its workspaces again")
    runtime = ProcessRuntime(settings.data_dir / "runtime", settings.tools_dir)
    running = sorted(name for name, fact in (await runtime.observe()).items() if fact.running)
    for workspace_id in running:
        await runtime.stop(workspace_id)
    typer.echo(f"{len(running)} workspaces stopped")
