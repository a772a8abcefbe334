"""`codehub cp`: files and directories, to and from a workspace."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from codehub.cli.remote.common import Server, connect, fail, find, printable, reported_errors

if TYPE_CHECKING:
    from codehub.client import Client, Files

app = typer.Typer(add_completion=False, rich_markup_mode=None)
Progress = Callable[[int, int | None], None]


@dataclass(frozen=True)
class Place:
    """One side of a copy: `WORKSPACE:PATH`, or a path of this machine."""

    workspace: str | None
    path: str

    @classmethod
    def parse(cls, text: str) -> "Place":
        """A colon behind a slash belongs to a path of this machine, as with scp."""
        name, colon, path = text.partition(":")
        is_remote = bool(colon and name) and "/" not in name
        return cls(name, path) if is_remote else cls(None, text)


@app.command("cp")
def copy(
    source: Annotated[str, typer.Argument(help="A path here, or WORKSPACE:PATH.")],
    target: Annotated[str, typer.Argument(help="The same. One of both is in a workspace.")],
    wake: Annotated[
        bool, typer.Option("--wake", help="Start the workspace first, if it is in standby.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
    server: Server = None,
) -> None:
    """Copy a file, or what is in a directory. Paths in a workspace are relative to its home."""
    origin, goal = Place.parse(source), Place.parse(target)
    if (origin.workspace is None) == (goal.workspace is None):
        fail(
            "one of both is WORKSPACE:PATH, and the other a path here. Write ./a:b for a name with a colon.",
            2,
        )
    with reported_errors(), connect(server) as client, _progress(origin.path, quiet=quiet) as progress:
        if goal.workspace is not None:
            _files(client, goal, wake=wake).upload(origin.path, goal.path, progress=progress)
        else:
            _files(client, origin, wake=wake).download(origin.path, Path(goal.path), progress=progress)


def _files(client: "Client", place: Place, *, wake: bool) -> "Files":
    assert place.workspace is not None
    files = find(client, place.workspace).files
    return files.waking() if wake else files


@contextlib.contextmanager
def _progress(name: str, *, quiet: bool) -> Iterator[Progress | None]:
    """Show a bar on a terminal."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TransferSpeedColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    with Bar(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(printable(Path(name).name or name or "."), total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
