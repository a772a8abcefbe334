"""`/workspaces/{id}/logs`: the recent output of a workspace's container, and what follows."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack
from typing import Annotated

from fastapi import APIRouter, Query, Response

from codehub.access.byte_stream import BYTES, ByteStream, StreamCut
from codehub.access.permissions import WorkspaceId, find_own
from codehub.access.services import Shared
from codehub.asgi.callers import UseCaller
from codehub.domain.allowed_changes import is_in_error
from codehub.domain.problems import InvalidState, UpstreamUnavailable
from codehub.domain.states import DesiredState, Operation, Phase
from codehub.domain.workspace import Workspace
from codehub.runtimes.command_runtime import LogsUnavailable

router = APIRouter(prefix="/workspaces/{workspace_id}", tags=["workspaces"])


@router.get("/logs", response_class=Response, responses={200: BYTES})
async def read_logs(
    workspace_id: WorkspaceId,
    caller: UseCaller,
    services: Shared,
    lines: Annotated[int, Query(ge=1, le=100_000)] = 200,
    follow: bool = False,
) -> Response:
    """Return the last lines of the output of the IDE, also while the workspace is in standby.

    With `follow`, output is sent as it comes, and the response ends when the workspace has stopped.
    """
    services.readers.check(caller.user_id)
    async with services.transaction(caller) as conn:
        workspace = await find_own(conn, caller, workspace_id)
    if workspace.phase is Phase.RUNNING and not await services.commands.has_logs(workspace_id):
        raise InvalidState(
            "This workspace offers no output: an older version of CodeHub started it; "
            "restart it to read its output."
        )
    until = asyncio.Event()
    async with AsyncExitStack() as stack:
        if follow:
            stack.enter_context(services.workspace_watchers.watch(workspace_id, _has_stopped, until.set))
        else:
            until.set()
        try:
            pieces = await stack.enter_async_context(services.commands.read_logs(workspace_id, lines, until))
        except LogsUnavailable as error:
            raise UpstreamUnavailable(f"The output cannot be read: {error}.") from error
        return ByteStream(_cut_on_problem(pieces), services, caller, {}, resources=stack.pop_all())


def _has_stopped(workspace: Workspace) -> bool:
    """Return whether the container is gone, and none is being started."""
    if workspace.phase is Phase.RUNNING or workspace.operation is not Operation.NONE:
        return False
    return workspace.desired_state is not DesiredState.RUNNING or is_in_error(workspace)


async def _cut_on_problem(pieces: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """End the stream visibly when it cannot go on: its head has been sent."""
    try:
        async for piece in pieces:
            yield piece
    except LogsUnavailable as error:
        raise StreamCut from error
