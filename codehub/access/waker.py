"""Wait until a workspace runs, and request its start on the way."""

import asyncio
from typing import Final

from codehub.access.permissions import check_credential, find_own
from codehub.access.services import AccessServices
from codehub.clock import utc_now
from codehub.database import gate
from codehub.database.credentials import Credential
from codehub.domain.problems import WakeTimeout
from codehub.domain.states import DesiredState
from codehub.domain.waking import Wake, WakeAction, WakeStep, next_wake_step
from codehub.domain.workspace import Workspace

FIRST_POLL_SECONDS: Final = 0.05
LAST_POLL_SECONDS: Final = 0.5


async def wake(
    services: AccessServices, caller: Credential, workspace_id: str, how: Wake, within: float
) -> Workspace:
    """Return the workspace once it runs. Raise WakeTimeout after `within` seconds."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within
    pause = FIRST_POLL_SECONDS  # a start takes less than a second where nothing else waits
    while True:
        workspace, step = await _advance(services, caller, workspace_id, how)
        if step.action is WakeAction.READY:
            return workspace
        remaining = deadline - loop.time()
        if remaining <= 0:
            raise WakeTimeout(
                f"The workspace does not run yet after {within:g} s: {step.sentence}. Try again.",
                retry_after=5,
            )
        await asyncio.sleep(min(pause, remaining))
        pause = min(pause * 1.5, LAST_POLL_SECONDS)


async def _advance(
    services: AccessServices, caller: Credential, workspace_id: str, how: Wake
) -> tuple[Workspace, WakeStep]:
    async with services.transaction(caller) as conn:
        workspace = await find_own(conn, caller, workspace_id)
        step = next_wake_step(workspace, how)
        if step.action is WakeAction.REQUEST_START:
            workspace = await gate.set_desired_state(
                conn,
                workspace_id,
                DesiredState.RUNNING,
                actor=caller.actor_name,
                limits=services.limits,
                now=utc_now(),
                by_person=not caller.is_token,
            )
        await check_credential(conn, caller)  # behind the wait for the row
    return workspace, step
