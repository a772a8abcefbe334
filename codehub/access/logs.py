"""`/workspaces/{id}/logs`: the recent output of a workspace's container."""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from codehub.access.answers import Answer
from codehub.access.byte_stream import BYTES, SAFE_HEADERS
from codehub.access.permissions import WorkspaceId, find_own
from codehub.access.services import Shared
from codehub.asgi.callers import UseCaller

router = APIRouter(prefix="/workspaces/{workspace_id}", tags=["workspaces"])


@router.get("/logs", response_class=Response, responses={200: BYTES})
async def read_logs(
    workspace_id: WorkspaceId,
    caller: UseCaller,
    services: Shared,
    answer: Answer,
    lines: Annotated[int, Query(ge=1, le=100_000)] = 200,
) -> Response:
    """Return the last lines of the output of the IDE, also while the workspace is in standby."""
    async with services.transaction(caller) as conn:
        await find_own(conn, caller, workspace_id)
    await answer.begin()
    text = await services.commands.logs(workspace_id, lines)
    return Response(f"{text}\n" if text else "", headers=SAFE_HEADERS)
