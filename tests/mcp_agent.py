"""Client of `codehub mcp`, with the official SDK over stdio."""

import contextlib
import os
import re
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from mcp import Client as McpClient
from mcp import StdioServerParameters

from tests.services import System
from tests.waiting import PATIENCE


@dataclass
class Agent:
    """Client of `codehub mcp`."""

    client: McpClient
    progress: list[str] = field(default_factory=list)

    async def __call__(self, tool: str, **arguments: Any) -> str:
        is_error, text = await self.call(tool, **arguments)
        assert not is_error, text
        return text

    async def failed(self, tool: str, **arguments: Any) -> str:
        is_error, text = await self.call(tool, **arguments)
        assert is_error, text
        assert "Traceback" not in text
        return text

    async def call(self, tool: str, **arguments: Any) -> tuple[bool, str]:
        result = await self.client.call_tool(tool, arguments, progress_callback=self._record)
        [content] = result.content
        assert content.type == "text"
        return bool(result.is_error), content.text

    async def _record(self, progress: float, total: float | None, message: str | None) -> None:
        self.progress.append(message or "")


@contextlib.asynccontextmanager
async def connected(system: System, token: str, *options: str) -> AsyncIterator[Agent]:
    environment = dict(os.environ) | {"CODEHUB_URL": system.base_url, "CODEHUB_TOKEN": token}
    parameters = StdioServerParameters(
        command=sys.executable, args=["-m", "codehub", "mcp", *options], env=environment
    )
    async with McpClient(parameters, read_timeout_seconds=PATIENCE) as client:
        yield Agent(client)


def command_id(text: str) -> str:
    found = re.match(r"Command (\w{26}) ", text)
    assert found, text
    return found[1]
