"""The MCP server, and its transport on standard input and output."""

import inspect
import logging
import sys
from collections.abc import Awaitable, Callable
from typing import Any, Final

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError, UnexpectedToolError
from mcp_types import CallToolResult, InputRequiredResult, ToolAnnotations
from pydantic import ValidationError

import codehub
from codehub.client import AsyncClient, CodehubError
from codehub.mcp.advice import explain
from codehub.mcp.command_tools import CommandTools
from codehub.mcp.file_tools import FileTools
from codehub.mcp.workspace_finder import WorkspaceFinder
from codehub.mcp.workspace_tools import WorkspaceTools

INSTRUCTIONS: Final = (
    "CodeHub workspaces are Linux machines with a home directory that stays when they stop. "
    "Commands and files need a RUNNING workspace. Results are bounded, and say how to get the rest."
)
_Tool = Callable[..., Awaitable[str]]
_READS: Final = ToolAnnotations(read_only_hint=True)
_ADDS: Final = ToolAnnotations(read_only_hint=False, destructive_hint=False)
_CHANGES: Final = ToolAnnotations(read_only_hint=False, destructive_hint=True)


class CodehubMCPServer(MCPServer[Any]):
    """MCP server whose tools report errors of the SDK, and take no arguments but their own."""

    def __init__(self) -> None:
        super().__init__(
            "codehub", title="CodeHub", version=codehub.__version__, instructions=INSTRUCTIONS,
            log_level="ERROR", subscriptions=False,
        )  # fmt: skip
        self._arguments: dict[str, list[str]] = {}

    def register(self, tool: _Tool, annotations: ToolAnnotations) -> None:
        self.add_tool(
            tool, description=inspect.getdoc(tool), annotations=annotations, structured_output=False
        )
        self._arguments[tool.__name__] = [
            each for each in inspect.signature(tool).parameters if each != "context"
        ]

    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: Context[Any, Any] | None = None
    ) -> CallToolResult | InputRequiredResult:
        known = self._arguments.get(name)
        unknown = [] if known is None else sorted(arguments.keys() - set(known))
        if known is not None and unknown:
            raise ToolError(f"{name} has no argument {unknown[0]!r}. It has: {', '.join(known)}.")
        try:
            return await super().call_tool(name, arguments, context)
        except UnexpectedToolError as error:
            if isinstance(error.__cause__, CodehubError):
                raise ToolError(explain(error.__cause__)) from error.__cause__
            raise
        except ToolError as error:
            if isinstance(error.__cause__, ValidationError):
                raise ToolError(f"{name}: {_wrong_arguments(error.__cause__)}") from None
            raise


def _wrong_arguments(error: ValidationError) -> str:
    """Return what is wrong with each argument, without its value."""
    found = (f"{'.'.join(str(part) for part in each['loc'])}: {each['msg']}" for each in error.errors())
    return "; ".join(found) + "."


def make_server(client: AsyncClient, bound_to: str | None = None) -> CodehubMCPServer:
    """Return a server with all tools. `bound_to` names the one workspace that they can use."""
    finder = WorkspaceFinder(client, bound_to)
    workspaces, commands, files = WorkspaceTools(finder), CommandTools(finder), FileTools(finder)
    adds: list[_Tool] = [workspaces.start_workspace, commands.start_command]
    if not finder.is_bound:
        adds.append(workspaces.create_workspace)
    reads: list[_Tool] = [
        workspaces.list_workspaces, workspaces.get_workspace, workspaces.read_logs, workspaces.get_port_url,
        commands.list_commands, commands.wait_command, commands.read_output,
        files.read_file, files.list_files, files.search_files,
    ]  # fmt: skip
    changes: list[_Tool] = [
        workspaces.stop_workspace, commands.run_command, commands.kill_command,
        files.write_file, files.edit_file,
    ]  # fmt: skip
    made = CodehubMCPServer()
    for tools, annotations in ((adds, _ADDS), (reads, _READS), (changes, _CHANGES)):
        for tool in tools:
            made.register(tool, annotations)
    return made


async def serve_stdio(server: str | None, bound_to: str | None) -> None:
    """Serve MCP on standard input and output until the input ends."""
    # Before the SDK does: Rich, which it would use, takes seconds for a traceback.
    logging.basicConfig(level=logging.ERROR, stream=sys.stderr)
    async with AsyncClient(server=server) as client:
        await make_server(client, bound_to).run_stdio_async()
