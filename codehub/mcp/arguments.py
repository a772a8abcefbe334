"""Arguments that several tools have."""

from typing import Annotated, Any

from mcp.server.mcpserver import Context
from pydantic import Field

AnyContext = Context[Any, Any]

Workspace = Annotated[str, Field(description="Name or id. Leave it out if there is only one.")]
WaitSeconds = Annotated[int, Field(ge=0, le=600, description="How long to wait for it.")]
Offset = Annotated[int, Field(ge=0, description="How many to skip.")]
Path = Annotated[str, Field(description="Relative to the home directory, unless absolute.")]
CommandId = Annotated[str, Field(description="From run_command, start_command or list_commands.")]
