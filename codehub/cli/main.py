"""The command `codehub`.

A command is imported when it runs, so that `--help` is fast, and so that the commands that call a server
need no package of the server.
"""

import importlib
from dataclasses import dataclass
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

import codehub


@dataclass(frozen=True)
class Entry:
    """A command: where it is, and its line in the help."""

    module: str
    help: str
    name_there: str = ""
    """Its name in a module with several commands."""


CLIENT: Final = {
    "login": Entry("remote.login", "Sign in to a server.", "login"),
    "logout": Entry("remote.login", "Forget the token of a server.", "logout"),
    "servers": Entry("remote.servers", "The servers that you are signed in to."),
    "ws": Entry("remote.workspaces", "List, create, start, stop and delete workspaces."),
    "exec": Entry("remote.execs", "Run a command in a workspace.", "exec"),
    "shell": Entry("remote.execs", "Open a shell in a workspace.", "shell"),
    "cp": Entry("remote.copy", "Copy files to and from a workspace.", "cp"),
    "port-forward": Entry("remote.port_forward", "Reach a port of a workspace on this machine."),
    "tokens": Entry("remote.tokens", "List, make and revoke your tokens."),
    "mcp": Entry("remote.mcp", "Let an agent use your workspaces (MCP).", "mcp"),
}
SYSTEM: Final = {
    "up": Entry("system", "Run the whole system on this machine, until Ctrl-C or SIGTERM.", "up"),
    "down": Entry("system", "Stop the system of a data directory.", "down"),
    "serve": Entry("serve", "Run one part against a PostgreSQL, Redis and archive store."),
    "migrate": Entry("system", "Migrate the database to this version.", "migrate"),
    "doctor": Entry("system", "Check everything that CodeHub needs.", "doctor"),
    "users": Entry("users", "Manage accounts, on this machine or on a server."),
    "ide": Entry("system", "The IDE that workspaces run.", "ide"),
}
_SECTIONS: Final = (("Use a server", CLIENT), ("Run a server", SYSTEM))
_ENTRIES: Final = CLIENT | SYSTEM


class LazyCommands(TyperGroup):
    """Group whose commands are imported when they are needed."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*_ENTRIES, *super().list_commands(ctx)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        entry = _ENTRIES.get(cmd_name)
        if entry is None:
            return super().get_command(ctx, cmd_name)
        command: Any = typer.main.get_command(_load(entry))
        # Typer makes no group of an app with one command.
        return getattr(command, "commands", {}).get(entry.name_there, command)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Show the commands of both halves apart, without importing them."""
        for title, entries in _SECTIONS:
            with formatter.section(title):
                formatter.write_dl([(name, entry.help) for name, entry in entries.items()])

    def invoke(self, ctx: Any) -> Any:
        """Run a command; name the extra whose packages it misses."""
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            if error.name is None or error.name.startswith("codehub"):
                raise
            message = f"codehub: this needs the Python package {error.name}, which is not installed."
            typer.secho(f"{message} Run: pip install 'codehub[server]'", fg=typer.colors.RED, err=True)
            raise typer.Exit(1) from error


def _load(entry: Entry) -> typer.Typer:
    loaded: typer.Typer = importlib.import_module(f"codehub.cli.{entry.module}").app
    return loaded


app = typer.Typer(
    cls=LazyCommands, no_args_is_help=True, pretty_exceptions_enable=False,
    rich_markup_mode=None,  # loading Rich doubles the time that --help takes
    help="CodeHub: VS Code in the browser, homes that are never lost.",
)  # fmt: skip


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(codehub.__version__)
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    pass


@app.command(hidden=True)
def version() -> None:
    """Print the version."""
    typer.echo(codehub.__version__)
