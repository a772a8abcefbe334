"""`codehub mcp`: workspaces for agents, over MCP on standard input and output."""

import asyncio
from typing import Annotated

import typer

from codehub.cli.remote.common import Server, complete_workspace, fail, reported_errors

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command("mcp")
def serve(
    workspace: Annotated[
        str | None,
        typer.Option(
            "--workspace", "-w", metavar="NAME", autocompletion=complete_workspace,
            help="Let the agent use this workspace only.",
        ),
    ] = None,
    server: Server = None,
) -> None:  # fmt: skip
    """Let an agent use your workspaces: an MCP server on standard input and output."""
    with reported_errors():
        try:
            from codehub.mcp.server import serve_stdio
        except ModuleNotFoundError as error:
            if error.name is None or error.name.startswith("codehub"):
                raise
            fail(
                f"`codehub mcp` needs the Python package {error.name}, which is not installed. "
                "Run: pip install 'codehub[mcp]'"
            )
        asyncio.run(serve_stdio(server, workspace))
