"""Tools for commands."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from functools import partial
from typing import Annotated, Final, Literal

import anyio
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field

from codehub.client import AsyncExec, Chunk, CodehubError, CommandKilled, Conflict, TimedOut
from codehub.client.aio.io import merge
from codehub.client.aio.transport import AsyncCancellation
from codehub.mcp import progress
from codehub.mcp.arguments import AnyContext, CommandId, Offset, WaitSeconds, Workspace
from codehub.mcp.output import MOST_BYTES, STREAMS, News, OutputTail, report, state_line
from codehub.mcp.workspace_finder import WorkspaceFinder

LISTED: Final = 50
MOST_COMMAND: Final = 200
_KILL_SECONDS: Final = 10.0

Shell = Annotated[str, Field(min_length=1, description="Run by `sh -lc`.")]
Directory = Annotated[str, Field(description="Relative to the home directory, which is the default.")]
Variables = Annotated[dict[str, str] | None, Field(description="Further environment variables.")]
Timeout = Annotated[float | None, Field(gt=0, description="Kill it after this many seconds.")]
Wake = Annotated[bool, Field(description="Start the workspace first, if it is in standby.")]


class CommandTools:
    """Tools that run commands in workspaces."""

    def __init__(self, finder: WorkspaceFinder) -> None:
        self._finder = finder

    async def run_command(
        self,
        command: Shell,
        context: AnyContext,
        workspace: Workspace = "",
        cwd: Directory = "",
        env: Variables = None,
        stdin: Annotated[str | None, Field(description="Its whole input.")] = None,
        timeout_seconds: Timeout = None,
        wake: Wake = False,
        wait_seconds: WaitSeconds = 50,
    ) -> str:
        """Run a command, and return its exit code and the end of its output.

        Output is also sent as progress. After wait_seconds the command goes on, and you get its id.
        Cancelling this call kills it.
        """
        started = await self._start(
            command, workspace, cwd, env, timeout_seconds, wake=wake, stdin=stdin is not None
        )
        try:
            return await _follow(started, dict.fromkeys(STREAMS, 0), wait_seconds, context, stdin)
        except asyncio.CancelledError:
            with anyio.move_on_after(_KILL_SECONDS, shield=True), suppress(CodehubError):
                await started.delete()
            raise

    async def start_command(
        self,
        command: Shell,
        workspace: Workspace = "",
        cwd: Directory = "",
        env: Variables = None,
        timeout_seconds: Timeout = None,
        wake: Wake = False,
    ) -> str:
        """Start a command in the background, such as a server. It goes on when you disconnect."""
        started = await self._start(command, workspace, cwd, env, timeout_seconds, wake=wake, stdin=False)
        return report(started.info, {})

    async def wait_command(
        self,
        command_id: CommandId,
        context: AnyContext,
        workspace: Workspace = "",
        wait_seconds: WaitSeconds = 50,
    ) -> str:
        """Wait until a command ends, and return its exit code and the end of its output."""
        command = await self._find(workspace, command_id)
        info = command.info
        totals = {"stdout": info.stdout_bytes, "stderr": info.stderr_bytes}
        offsets = {stream: max(0, total - MOST_BYTES) for stream, total in totals.items()}
        return await _follow(command, offsets, wait_seconds, context, None)

    async def kill_command(
        self,
        command_id: CommandId,
        workspace: Workspace = "",
        signal: Literal["TERM", "KILL", "INT"] = "TERM",
    ) -> str:
        """Send a signal to a command, and wait a moment for its end."""
        command = await self._find(workspace, command_id)
        if not command.info.is_running:
            return f"It had ended before. {state_line(command.info)}"
        try:
            await command.signal(signal)
            await command.wait(_KILL_SECONDS)
        except TimedOut:
            return f"{state_line(command.info)} It has not ended yet. Use signal=KILL if it ignores {signal}."
        except (CommandKilled, Conflict):  # it ended otherwise, or at the same moment
            await command.refresh()
        return state_line(command.info)

    async def list_commands(self, workspace: Workspace = "", offset: Offset = 0) -> str:
        """List commands of a workspace with their ids and states, newest first."""
        every = await (await self._finder.find(workspace)).execs()
        shown = every[offset : offset + LISTED]
        lines = [f"{state_line(each.info)} {_shown(each)}" for each in shown]
        end = offset + len(shown)
        if end < len(every):
            lines.append(f"{len(every) - end} more: list_commands with offset={end}")
        return "\n".join(lines) or f"No commands here, of {len(every)}."

    async def read_output(
        self,
        command_id: CommandId,
        workspace: Workspace = "",
        stream: Literal["stdout", "stderr"] = "stdout",
        offset: Annotated[int, Field(ge=0, description="The first byte to return.")] = 0,
    ) -> str:
        """Read output of a command from a byte offset, at most 20000 bytes at once."""
        command = await self._find(workspace, command_id)
        info = command.info
        total = info.stdout_bytes if stream == "stdout" else info.stderr_bytes
        if offset >= total:
            return f"{stream} has {total} bytes: there is nothing at offset {offset}. {state_line(info)}"
        start, data = await _read(command, stream, offset)
        end = start + len(data)
        head = f"{stream}: bytes {start} to {end} of {total}."
        if start > offset:
            head += f" Bytes {offset} to {start} are no longer kept."
        if end < total:
            head += f" Go on with offset={end}."
        return f"{head} {state_line(info)}\n{data.decode(errors='replace')}"

    async def _start(
        self, command: str, workspace: str, cwd: str, env: dict[str, str] | None, timeout: float | None,
        *, wake: bool, stdin: bool,
    ) -> AsyncExec:  # fmt: skip
        found = await self._finder.find(workspace)
        return await found.exec(command, cwd=cwd, env=env, timeout_seconds=timeout, wake=wake, stdin=stdin)

    async def _find(self, workspace: str, command_id: str) -> AsyncExec:
        if not command_id:
            raise ToolError("command_id is empty. Call list_commands.")
        return await (await self._finder.find(workspace)).get_exec(command_id)


async def _follow(
    command: AsyncExec, offsets: dict[str, int], seconds: int, context: AnyContext, stdin: str | None
) -> str:
    """Read output until the command ends, at most so long, and return its end."""
    tails = {stream: OutputTail(offset) for stream, offset in offsets.items()}
    news = News()
    with suppress(TimeoutError):
        async with progress.reported(context, news.take), asyncio.timeout(seconds):
            if stdin is not None:
                await command.write(stdin.encode())
                await command.close_input()
            async with aclosing(_both_streams(command, offsets)) as chunks:
                async for chunk in chunks:
                    tails[chunk.stream].add(chunk)
                    news.add(chunk.data)
    return report(await command.refresh(), tails)


def _both_streams(command: AsyncExec, offsets: dict[str, int]) -> AsyncGenerator[Chunk, None]:
    def output(stream: str, _: AsyncCancellation) -> AsyncGenerator[Chunk, None]:
        return command.output(stream, offsets[stream])

    streams = ("stdout",) if command.info.tty else STREAMS
    return merge([partial(output, stream) for stream in streams])


async def _read(command: AsyncExec, stream: str, offset: int) -> tuple[int, bytes]:
    """Return at most MOST_BYTES that are there by now, and where they begin."""
    start, data = offset, bytearray()
    async with aclosing(command.output(stream, offset, follow=False)) as chunks:
        async for chunk in chunks:
            if not data:
                start = chunk.offset
            elif chunk.offset != start + len(data):
                break
            data += chunk.data
            if len(data) >= MOST_BYTES:
                break
    return start, bytes(data[:MOST_BYTES])


def _shown(command: AsyncExec) -> str:
    if command.info.command is None:
        return ""
    text = " ".join(command.info.command)
    return text if len(text) <= MOST_COMMAND else f"{text[:MOST_COMMAND]}..."
