"""`codehub ws ...`: workspaces of a server."""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from codehub.cli.remote.common import (
    Json,
    Server,
    WorkspaceName,
    connect,
    find,
    local_time,
    print_json,
    print_table,
    printable,
    reported_errors,
    status,
)

if TYPE_CHECKING:
    from codehub.client import Workspace

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    help="List, create, start, stop and delete workspaces.",
)
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until it is done.")]
Timeout = Annotated[float, typer.Option("--timeout", min=0, metavar="SECONDS", help="How long to wait.")]
Ttl = Annotated[
    int | None, typer.Option(min=0, metavar="SECONDS", help="0 is never. The default is the server's.")
]
_CONTROLS = bytes(byte for byte in range(32) if byte not in b"\t\n\r")
PHASES = ("PENDING", "ARCHIVED", "STANDBY", "RUNNING", "ERROR", "DELETED")


def _one_of_phases(value: str) -> str:
    if value.upper() not in PHASES:
        raise typer.BadParameter(f"use one of {', '.join(PHASES)}")
    return value.upper()


@app.command("list")
def list_workspaces(
    query: Annotated[str, typer.Argument(help="Only those with these words.")] = "",
    phase: Annotated[
        str | None, typer.Option(help="Only those in this phase.", parser=_one_of_phases, metavar="PHASE")
    ] = None,
    trash: Annotated[bool, typer.Option("--trash", help="List deleted ones.")] = False,
    json: Json = False,
    server: Server = None,
) -> None:
    """List your workspaces."""
    with reported_errors(), connect(server) as client:
        found = client.workspaces.list(phase=phase, query=query, trash=trash)
        if json:
            print_json([each.info.raw for each in found])
            return
        rows = [(each.name, _state(each), local_time(each.info.last_access_at), each.id) for each in found]
        print_table(("NAME", "STATE", "LAST USED", "ID"), rows)


@app.command()
def create(
    name: str,
    image: Annotated[str | None, typer.Option(help="One of the server's images.")] = None,
    description: str = "",
    state: Annotated[
        str, typer.Option(help="RUNNING, STANDBY or ARCHIVED.", parser=_one_of_phases, metavar="STATE")
    ] = "RUNNING",
    standby_ttl: Ttl = None,
    archive_ttl: Ttl = None,
    wait: Wait = True,
    timeout: Timeout = 600,
    json: Json = False,
    server: Server = None,
) -> None:
    """Create a workspace, and start it."""
    with reported_errors(), connect(server) as client:
        made = client.workspaces.create(
            name, description=description, image=image, standby_ttl_seconds=standby_ttl,
            archive_ttl_seconds=archive_ttl, desired_state=state,
        )  # fmt: skip
        _finish(made, state, wait=wait, timeout=timeout, json=json)


@app.command()
def show(workspace: WorkspaceName, json: Json = False, server: Server = None) -> None:
    """Show a workspace."""
    with reported_errors(), connect(server) as client:
        found = find(client, workspace)
        found.refresh()
        if json:
            print_json(found.info.raw)
            return
        info = found.info
        lines = {
            "name": info.name, "id": info.id, "state": _state(found), "error": info.error_message or "",
            "description": info.description, "image": info.image_ref, "url": info.url,
            "standby": info.standby.reason if info.standby else "",
            "archived at": local_time(info.archive_at), "created": local_time(info.created_at),
            "last used": local_time(info.last_access_at),
        }  # fmt: skip
        for name, value in lines.items():
            if value:
                typer.echo(f"{name + ':':<14}{printable(value)}")


@app.command()
def start(
    workspace: WorkspaceName,
    wait: Wait = True,
    timeout: Timeout = 600,
    json: Json = False,
    server: Server = None,
) -> None:
    """Start a workspace, from its archive if need be."""
    _move(workspace, server, lambda found: found.start(), "RUNNING", wait=wait, timeout=timeout, json=json)


@app.command()
def stop(
    workspace: WorkspaceName,
    wait: Wait = True,
    timeout: Timeout = 600,
    json: Json = False,
    server: Server = None,
) -> None:
    """Stop a workspace. Its home stays."""
    _move(workspace, server, lambda found: found.stop(), "STANDBY", wait=wait, timeout=timeout, json=json)


@app.command()
def archive(
    workspace: WorkspaceName,
    wait: Wait = True,
    timeout: Timeout = 3600,
    json: Json = False,
    server: Server = None,
) -> None:
    """Stop a workspace, and move its home into an archive."""
    _move(workspace, server, lambda found: found.archive(), "ARCHIVED", wait=wait, timeout=timeout, json=json)


@app.command()
def restore(
    workspace: WorkspaceName,
    archive_id: Annotated[
        str | None,
        typer.Option("--archive", metavar="ID", help="An older archive. The present home is archived first."),
    ] = None,
    wait: Wait = True,
    timeout: Timeout = 3600,
    json: Json = False,
    server: Server = None,
) -> None:
    """Bring the home of a workspace back from its archive."""
    with reported_errors(), connect(server) as client:
        found = find(client, workspace).restore(archive_id)
        _finish(
            found, "STANDBY", wait=wait, timeout=timeout, json=json, until_restored=archive_id is not None
        )


@app.command()
def delete(
    workspace: WorkspaceName,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    for_good: Annotated[
        str, typer.Option("--for-good", metavar="NAME", help="Delete it without an archive: repeat its name.")
    ] = "",
    server: Server = None,
) -> None:
    """Move a workspace to the trash."""
    with reported_errors(), connect(server) as client:
        found = find(client, workspace)
        if for_good:
            found.delete_for_good(confirm=for_good)
            typer.echo(f"deleted {printable(found.name)} for good")
            return
        if not yes:
            typer.confirm(f"Move {printable(found.name)} on {client.url} to the trash?", abort=True, err=True)
        found.delete()
        typer.echo(f"deleted {printable(found.name)}. `codehub ws undelete {found.id}` brings it back")


@app.command()
def undelete(workspace: WorkspaceName, json: Json = False, server: Server = None) -> None:
    """Bring a workspace back from the trash."""
    with reported_errors(), connect(server) as client:
        _show_moved(find(client, workspace, trash=True).undelete(), json=json)


@app.command("open")
def open_workspace(
    workspace: WorkspaceName,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Open an app's port, not the IDE.")
    ] = None,
    print_only: Annotated[bool, typer.Option("--print", help="Print the address only.")] = False,
    server: Server = None,
) -> None:
    """Open the IDE of a workspace in the browser."""
    with reported_errors(), connect(server) as client:
        found = find(client, workspace)
        url = found.url if port is None else found.port_url(port)
    typer.echo(url)
    if not print_only:
        typer.launch(url)


@app.command()
def logs(
    workspace: WorkspaceName,
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, max=100_000)] = 200,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the workspace stops.")] = False,
    server: Server = None,
) -> None:
    """Print what the IDE of a workspace has written."""
    with reported_errors(), connect(server) as client:
        found = find(client, workspace)
        if not follow:
            sys.stdout.buffer.write(_safe(found.logs(lines)))
            return
        for chunk in found.follow_logs(lines):
            if chunk.is_repeated:
                typer.echo("codehub: the connection broke. The last lines follow again", err=True)
            sys.stdout.buffer.write(_safe(chunk.data))
            sys.stdout.buffer.flush()


@app.command()
def wait(
    workspace: WorkspaceName,
    phase: Annotated[str, typer.Argument(parser=_one_of_phases, metavar="[PHASE]")] = "RUNNING",
    timeout: Timeout = 600,
    json: Json = False,
    server: Server = None,
) -> None:
    """Wait until a workspace is in a phase."""
    with reported_errors(), connect(server) as client:
        _finish(find(client, workspace), phase, wait=True, timeout=timeout, json=json)


def _safe(data: bytes) -> bytes:
    """Return output of a workspace without what would control the terminal, if there is one."""
    return data.translate(None, _CONTROLS) if sys.stdout.isatty() else data


def _move(
    name: str, server: str | None, act: "Callable[[Workspace], Workspace]", phase: str,
    *, wait: bool, timeout: float, json: bool,
) -> None:  # fmt: skip
    with reported_errors(), connect(server) as client:
        _finish(act(find(client, name)), phase, wait=wait, timeout=timeout, json=json)


def _finish(
    workspace: "Workspace",
    phase: str,
    *,
    wait: bool,
    timeout: float,
    json: bool,
    until_restored: bool = False,
) -> None:
    if wait:
        with status(f"{workspace.name}: waiting for {phase}"):
            if until_restored:
                workspace.wait_until_restored(timeout)
            else:
                workspace.wait_until(phase, timeout)
    _show_moved(workspace, json=json)


def _show_moved(workspace: "Workspace", *, json: bool) -> None:
    if json:
        print_json(workspace.info.raw)
    else:
        typer.echo(f"{printable(workspace.name)} {_state(workspace)}")


def _state(workspace: "Workspace") -> str:
    info = workspace.info
    return info.phase if info.is_at_rest else f"{info.phase} ({info.operation.lower().replace('_', ' ')})"
