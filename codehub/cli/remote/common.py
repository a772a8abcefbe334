"""What the commands that call a server share: the connection, errors, exit codes, tables and JSON."""

import contextlib
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

import typer

if TYPE_CHECKING:
    from codehub.client import AsyncClient, Client, Workspace

FAILED: Final = 1
NOT_SIGNED_IN: Final = 3
NOT_FOUND: Final = 4
REFUSED: Final = 5
"""The state of something, or a limit, does not allow it now."""
UNREACHABLE: Final = 6
INTERRUPTED: Final = 130
RETRY_SECONDS = 10.0
"""A person waits for the error. Streams are tried for longer."""
BROKEN_PIPE: Final = 141


def complete_server(incomplete: str) -> list[str]:
    from codehub.client.credentials import credentials_path, load
    from codehub.client.errors import CodehubError

    try:
        return [name for name in load(credentials_path()).servers if name.startswith(incomplete)]
    except CodehubError:
        return []


def complete_workspace(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return names of workspaces. Whatever fails completes nothing: a shell shows no errors."""
    from codehub.client import Client
    from codehub.client.errors import CodehubError

    try:
        with Client(server=ctx.params.get("server"), retry_seconds=1.0) as client:
            names = [workspace.name for workspace in client.workspaces.list()]
    except CodehubError:
        return []
    return [name for name in names if name.startswith(incomplete)]


Server = Annotated[
    str | None,
    typer.Option(
        "--server", "-s", metavar="NAME", autocompletion=complete_server,
        help="The server, by its name or address (CODEHUB_URL, or the one of your last login).",
    ),
]  # fmt: skip
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
WorkspaceName = Annotated[
    str, typer.Argument(metavar="WORKSPACE", help="Its name or id.", autocompletion=complete_workspace)
]


@contextlib.contextmanager
def reported_errors(failed: int | None = None) -> Iterator[None]:
    """Print an expected error as one sentence, and exit. `failed` is the exit code of all of them."""
    from codehub.client.errors import CodehubError

    try:
        yield
        sys.stdout.flush()
    except CodehubError as error:
        fail(str(error), exit_code(error) if failed is None else failed)
    except BrokenPipeError:
        end_quietly()
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except (OSError, ValueError) as error:
        fail(str(error), FAILED if failed is None else failed)


def exit_code(error: Exception) -> int:
    from codehub.client import errors

    if isinstance(error, errors.Unauthorized | errors.ConfigurationError):
        return NOT_SIGNED_IN
    if isinstance(error, errors.NotFound):
        return NOT_FOUND
    if isinstance(error, errors.Conflict | errors.TooManyRequests):
        return REFUSED
    return UNREACHABLE if isinstance(error, errors.ConnectionFailed) else FAILED


def fail(message: str, code: int = FAILED) -> NoReturn:
    typer.secho(f"codehub: {message}", fg=typer.colors.RED, err=True)
    raise typer.Exit(code)


def end_quietly() -> NoReturn:
    """Exit as a program does whose reader has gone. Python would report a failed flush at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise typer.Exit(BROKEN_PIPE)


def connect(server: str | None) -> "Client":
    from codehub.client import Client

    return Client(server=server, retry_seconds=RETRY_SECONDS)


def connect_async(server: str | None) -> "AsyncClient":
    from codehub.client import AsyncClient

    return AsyncClient(server=server, retry_seconds=RETRY_SECONDS)


def print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print columns that fit their content; without headers if a program reads them."""
    from rich.cells import cell_len

    shown = [[printable(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        shown.insert(0, list(headers))
    widths = [max((cell_len(row[column]) for row in shown), default=0) for column in range(len(headers))]
    for row in shown:
        cells = (cell + " " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True))
        typer.echo("  ".join(cells).rstrip())


def printable(text: str) -> str:
    """Return text of others without what would control the terminal."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def local_time(moment: datetime | None) -> str:
    return "" if moment is None else moment.astimezone().strftime("%Y-%m-%d %H:%M")


@contextlib.contextmanager
def status(text: str) -> Iterator[Any]:
    """Show on a terminal what is waited for."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console

    with Console(stderr=True).status(printable(text)) as shown:
        yield shown


def find(client: "Client", name: str, *, trash: bool = False) -> "Workspace":
    return client.workspaces.find(name, trash=trash)
