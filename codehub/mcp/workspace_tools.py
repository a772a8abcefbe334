"""Tools for workspaces."""

from typing import Annotated, Final

from pydantic import Field

from codehub.client import AsyncWorkspace, TimedOut
from codehub.mcp import progress
from codehub.mcp.arguments import AnyContext, Offset, WaitSeconds, Workspace
from codehub.mcp.workspace_finder import WorkspaceFinder

LISTED: Final = 50
MOST_LOG_BYTES: Final = 30_000
MOST_LOG_LINES: Final = 100_000


class WorkspaceTools:
    """Tools that list and change workspaces."""

    def __init__(self, finder: WorkspaceFinder) -> None:
        self._finder = finder

    async def list_workspaces(self, offset: Offset = 0) -> str:
        """List workspaces: name, id and phase. RUNNING is needed for commands and files."""
        every = await self._finder.all()
        shown = every[offset : offset + LISTED]
        lines = [f"{each.name}  {each.id}  {_state(each)}" for each in shown]
        end = offset + len(shown)
        if end < len(every):
            lines.append(f"{len(every) - end} more: list_workspaces with offset={end}")
        return "\n".join(lines) or f"No workspaces here, of {len(every)}."

    async def get_workspace(self, workspace: Workspace = "") -> str:
        """Show the state of a workspace: phase, operation, error, when it stops, IDE address."""
        return _describe(await self._finder.find(workspace))

    async def create_workspace(
        self,
        name: str,
        context: AnyContext,
        description: str = "",
        image: Annotated[str, Field(description="Leave it out for the default image.")] = "",
        wait_seconds: WaitSeconds = 50,
    ) -> str:
        """Create a workspace, and wait until it runs."""
        made = await self._finder.client.workspaces.create(name, description=description, image=image or None)
        return await _wait(made, "RUNNING", wait_seconds, context)

    async def start_workspace(
        self, context: AnyContext, workspace: Workspace = "", wait_seconds: WaitSeconds = 50
    ) -> str:
        """Start a workspace, from its archive if need be, and wait until it runs."""
        found = await self._finder.find(workspace)
        return await _wait(await found.start(), "RUNNING", wait_seconds, context)

    async def stop_workspace(
        self, context: AnyContext, workspace: Workspace = "", wait_seconds: WaitSeconds = 50
    ) -> str:
        """Stop a workspace, and what runs in it. Its files stay."""
        found = await self._finder.find(workspace)
        return await _wait(await found.stop(), "STANDBY", wait_seconds, context)

    async def read_logs(
        self,
        workspace: Workspace = "",
        lines: Annotated[int, Field(ge=1, le=1000)] = 100,
        skip: Annotated[
            int, Field(ge=0, le=MOST_LOG_LINES - 1000, description="How many of the newest lines to skip.")
        ] = 0,
    ) -> str:
        """Show the newest lines that the workspace's IDE has logged, oldest of them first."""
        found = await self._finder.find(workspace)
        every = (await found.logs(lines + skip)).splitlines(keepends=True)
        shown = every[: len(every) - skip][-lines:]
        text = b"".join(shown)
        if len(text) > MOST_LOG_BYTES:
            kept = len(text[-MOST_LOG_BYTES:].splitlines())
            note = f"[Only the end of these lines. For those before: skip={skip + kept}]\n"
            return note + text[-MOST_LOG_BYTES:].decode(errors="replace")
        if not text:
            return "There are no such lines."
        is_all = len(every) < lines + skip
        note = "" if is_all else f"[For earlier lines: skip={skip + len(shown)}]\n"
        return note + text.decode(errors="replace")

    async def get_port_url(
        self,
        port: Annotated[int, Field(ge=1, le=65535)],
        workspace: Workspace = "",
        path: str = "",
    ) -> str:
        """Return the address of an HTTP port of the workspace. Its owner's browser can open it."""
        return (await self._finder.find(workspace)).port_url(port, path)


async def _wait(workspace: AsyncWorkspace, phase: str, seconds: int, context: AnyContext) -> str:
    last = ""

    def news() -> str:
        nonlocal last
        before, last = last, _state(workspace)
        return last if last != before else ""

    try:
        async with progress.reported(context, news):
            await workspace.wait_until(phase, timeout=seconds)
    except TimedOut:
        note = f"It is not {phase} after {seconds} s. Call get_workspace to see when it is."
        return f"{note}\n{_describe(workspace)}"
    return _describe(workspace)


def _state(workspace: AsyncWorkspace) -> str:
    info = workspace.info
    return info.phase if info.is_at_rest else f"{info.phase} ({info.operation} under way)"


def _describe(workspace: AsyncWorkspace) -> str:
    info = workspace.info
    lines = [f"{info.name}  {info.id}", f"phase: {_state(workspace)}"]
    if info.error_message:
        lines.append(f"error: {info.error_message}")
    if info.standby is not None:
        lines.append(f"standby: {info.standby.reason}")
    if info.description:
        lines.append(f"description: {info.description}")
    return "\n".join([*lines, f"IDE: {info.url}"])
