"""`codehub ide install`: install the IDE, with progress on the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from codehub.cli.ide import CODE_SERVER_VERSION, STEPS, InstallError, InstallProgress, install_code_server


def install(tools_dir: Path) -> None:
    """Install code-server, and show the progress."""
    console = Console()
    try:
        with _progress(console) as progress:
            command = install_code_server(tools_dir.absolute(), progress)
    except InstallError as error:
        Console(stderr=True).print(str(error), style="red", markup=False, highlight=False)
        raise typer.Exit(1) from error
    console.print(f"code-server {CODE_SERVER_VERSION} is ready: {command}", highlight=False, soft_wrap=True)


class _Lines:
    """Progress as lines, for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def step(self, title: str) -> None:
        self._console.print(title, markup=False, highlight=False, soft_wrap=True)

    note = step


class _Bar:
    """Progress as a bar, for terminals."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("Looking for code-server", total=STEPS, completed=-1)

    def step(self, title: str) -> None:
        self._progress.update(self._task, description=title, advance=1)

    def note(self, message: str) -> None:
        self._progress.update(self._task, description=message)


@contextmanager
def _progress(console: Console) -> Iterator[InstallProgress]:
    if not console.is_terminal:
        yield _Lines(console)
        return
    columns = (
        SpinnerColumn(), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}", markup=False),
        TimeElapsedColumn(),
    )  # fmt: skip
    with Progress(*columns, console=console) as progress:
        yield _Bar(progress)
