"""`codehub port-forward`: a port of a workspace on this machine."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Collection
from typing import TYPE_CHECKING, Annotated, Final

import typer

from codehub.cli.remote.common import INTERRUPTED, Server, WorkspaceName, connect_async, reported_errors

if TYPE_CHECKING:
    from codehub.client import AsyncPort, AsyncWorkspace

app = typer.Typer(add_completion=False, rich_markup_mode=None)
PIECE_BYTES = 64 << 10
END_SECONDS: Final = 2.0
"""Time for open connections to end after Ctrl-C."""


@app.command("port-forward")
def port_forward(
    workspace: WorkspaceName,
    ports: Annotated[
        str, typer.Argument(metavar="PORT[:LOCAL]", help="Such as 3000, or 3000:8080 for port 8080 here.")
    ],
    address: Annotated[
        str, typer.Option(help="Where to listen. Others reach what is not 127.0.0.1.")
    ] = "127.0.0.1",
    wake: Annotated[
        bool, typer.Option("--wake", help="Start the workspace first, if it is in standby.")
    ] = False,
    server: Server = None,
) -> None:
    """Forward a port of this machine to one of a workspace, until Ctrl-C."""
    remote, _, local = ports.partition(":")
    with reported_errors():
        asyncio.run(
            _forward(server, workspace, _port(remote), _port(local or remote, least=0), address, wake=wake)
        )


def _port(text: str, least: int = 1) -> int:
    if not (text.isascii() and text.isdigit() and least <= int(text) <= 65535):
        raise typer.BadParameter(f"{text!r} is not a port", param_hint="PORT[:LOCAL]")
    return int(text)


async def _forward(
    server: str | None, name: str, remote: int, local: int, address: str, *, wake: bool
) -> None:
    async with connect_async(server) as client:
        workspace = await client.workspaces.find(name)
        if wake:
            await (await workspace.start()).wait_until("RUNNING")

        connections: set[asyncio.Task[None]] = set()

        def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connection = asyncio.create_task(_serve(workspace, remote, reader, writer))
            connections.add(connection)
            connection.add_done_callback(connections.discard)

        listener = await asyncio.start_server(serve, address, local)
        interrupted = _interruption()
        shown = listener.sockets[0].getsockname()[1]
        typer.echo(f"forwarding {address}:{shown} to port {remote} of {workspace.name}", err=True)
        await interrupted.wait()
        listener.close()
        await _end(connections)
    raise typer.Exit(INTERRUPTED)


def _interruption() -> asyncio.Event:
    """Return an event that Ctrl-C sets."""
    interrupted = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, interrupted.set)
    return interrupted


async def _end(connections: Collection["asyncio.Task[None]"]) -> None:
    """Cancel what is being served. If it does not end, exit without it."""
    if not connections:
        return
    for connection in connections:
        connection.cancel()
    _, pending = await asyncio.wait(connections, timeout=END_SECONDS)
    if pending:
        os._exit(INTERRUPTED)


async def _serve(
    workspace: "AsyncWorkspace", port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Pass bytes both ways, until both directions have ended. A failure resets this connection only."""
    from codehub.client import CodehubError

    try:
        async with await workspace.connect_port(port) as remote:
            sending = asyncio.create_task(_send(reader, remote))
            try:
                while data := await remote.receive():
                    writer.write(data)
                    await writer.drain()
                with contextlib.suppress(OSError):
                    writer.write_eof()
                await sending
            finally:
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)
    except CodehubError as error:
        typer.echo(f"codehub: {error}", err=True)
        writer.transport.abort()
    except OSError:  # the program here has gone
        writer.transport.abort()
    finally:
        writer.close()


async def _send(reader: asyncio.StreamReader, remote: "AsyncPort") -> None:
    while data := await reader.read(PIECE_BYTES):
        await remote.send(data)
    await remote.end()
