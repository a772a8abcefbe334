"""`codehub exec` and `codehub shell`: commands in a workspace."""

import asyncio
import os
import sys
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Annotated, Any

import typer

from codehub.cli.remote.common import Server, WorkspaceName, connect_async, fail, reported_errors

if TYPE_CHECKING:
    from codehub.client import AsyncExec

app = typer.Typer(add_completion=False, rich_markup_mode=None)
FAILED = 125
"""Exit code of a command that could not be run, as with `docker exec`. Others are the command's own."""
SHELL = 'exec "${SHELL:-$(command -v bash || echo sh)}" -l'
Wake = Annotated[bool, typer.Option("--wake", help="Start the workspace first, if it is in standby.")]
Restore = Annotated[bool, typer.Option("--restore", help="Restore it from its archive as well.")]
AS_IT_STANDS = {"allow_interspersed_args": False}


@app.command("exec", context_settings=AS_IT_STANDS)
def run_command(
    workspace: WorkspaceName,
    command: Annotated[list[str], typer.Argument(help="The command, after --. One text is run by `sh -lc`.")],
    interactive: Annotated[bool, typer.Option("--interactive", "-i", help="Send it standard input.")] = False,
    tty: Annotated[bool, typer.Option("--tty", "-t", help="Give it a terminal.")] = False,
    env: Annotated[
        list[str] | None, typer.Option("--env", "-e", metavar="NAME=VALUE", help="Set a variable.")
    ] = None,
    cwd: Annotated[str, typer.Option("--cwd", "-w", help="Its directory, relative to the home.")] = "",
    timeout: Annotated[float | None, typer.Option(metavar="SECONDS", help="End it after this long.")] = None,
    key: Annotated[str | None, typer.Option(help="Within a day, the same key runs the command once.")] = None,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Print its id, and do not wait.")] = False,
    wake: Wake = False,
    restore: Restore = False,
    server: Server = None,
) -> None:
    """Run a command in a workspace. The exit code is that of the command."""
    arguments = command[1:] if command[:1] == ["--"] else command
    options: dict[str, Any] = {
        "env": _variables(env or []), "cwd": cwd, "timeout_seconds": timeout, "key": key,
        "stdin": interactive, "wake": "restore" if restore else wake,
    }  # fmt: skip
    if not arguments:
        raise typer.BadParameter("it is missing", param_hint="COMMAND")
    shown = arguments[0] if len(arguments) == 1 and " " in arguments[0] else arguments
    if tty:
        _run(_in_terminal(server, workspace, shown, options, detach=detach))
    else:
        _run(_piped(server, workspace, shown, options, interactive=interactive, detach=detach))


@app.command("shell")
def open_shell(
    workspace: WorkspaceName, wake: Wake = False, restore: Restore = False, server: Server = None
) -> None:
    """Open a shell in a workspace. Enter ~. at the beginning of a line to leave it running."""
    options = {"wake": "restore" if restore else wake}
    _run(_in_terminal(server, workspace, SHELL, options, detach=False))


def _run(work: Coroutine[Any, Any, int]) -> None:
    with reported_errors(FAILED):
        code = asyncio.run(work)
    raise typer.Exit(code)


async def _piped(
    server: str | None, name: str, command: str | list[str], options: dict[str, Any],
    *, interactive: bool, detach: bool,
) -> int:  # fmt: skip
    from codehub.cli.remote.piped_command import run_piped

    async with connect_async(server) as client:
        workspace = await client.workspaces.find(name)
        started = await workspace.exec(command, **options)
        if detach:
            return _print_id(started)
        return await run_piped(started, interactive=interactive)


async def _in_terminal(
    server: str | None, name: str, command: str | list[str], options: dict[str, Any], *, detach: bool
) -> int:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        fail("there is no terminal here. Leave -t away.", FAILED)
    from codehub.cli.remote.interactive_terminal import run_in_terminal, terminal_size

    environment = {"TERM": os.environ.get("TERM", "xterm-256color")} | options.pop("env", {})
    options.pop("stdin", None)
    async with connect_async(server) as client:
        workspace = await client.workspaces.find(name)
        started = await workspace.exec(command, tty=terminal_size(), env=environment, **options)
        if detach:
            return _print_id(started)
        return await run_in_terminal(started)


def _print_id(started: "AsyncExec") -> int:
    typer.echo(started.id)
    return 0


def _variables(texts: list[str]) -> dict[str, str]:
    """Return variables from NAME=VALUE, or NAME for the value that it has here."""
    found = {}
    for text in texts:
        name, given, value = text.partition("=")
        if not name:
            raise typer.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--env")
        found[name] = value if given else os.environ.get(name, "")
    return found
