"""Start of a command: its row, then the command with the row's id, which starts at most once."""

import asyncio
import hashlib
import json
import time
from dataclasses import replace
from typing import Final

import structlog

from codehub.access.exec_refresher import refresh_row
from codehub.access.permissions import check_credential
from codehub.access.services import MAX_ALIVE, AccessServices
from codehub.clock import utc_now
from codehub.database import exec_gate
from codehub.database.credentials import Credential
from codehub.database.exec_gate import ExecActor, NewExec
from codehub.domain.execs import Exec, ExecState
from codehub.domain.problems import InvalidState, sentence
from codehub.runtimes.command_runtime import CommandRefused, ExecRequest

logger = structlog.get_logger(__name__)

START_SECONDS: Final = 30.0


async def start(
    services: AccessServices, caller: Credential, workspace_id: str, request: ExecRequest, key: str | None
) -> Exec:
    """Start a command, or return the one that the key started before. `request` has no id yet.

    A repeated call continues a start that a crash interrupted: the command starts at most once.
    """
    new = NewExec(
        workspace_id,
        request.command,
        request.cwd,
        request.tty is not None,
        request.timeout_seconds,
        key,
        None if key is None else _hash(request),
    )
    # A client that goes away must neither leave a row without a command nor free the slot.
    return await asyncio.shield(_insert_and_start(services, caller, new, request))


def actor_of(caller: Credential) -> ExecActor:
    return ExecActor(caller.user_id, caller.actor_name, is_person=not caller.is_token)


async def _insert_and_start(
    services: AccessServices, caller: Credential, new: NewExec, request: ExecRequest
) -> Exec:
    async with services.starts_per_user.slot(caller.user_id):
        async with services.transaction(caller) as conn:
            row, _ = await exec_gate.insert_exec(
                conn,
                new,
                actor_of(caller),
                max_alive=MAX_ALIVE,
                output_bytes=request.output_bytes,
                now=utc_now(),
            )
            await check_credential(conn, caller)  # behind the wait for the row
        if row.state is not ExecState.STARTING:
            return await refresh_row(services.engine, services.commands, row)
        return await _start_with_id(services, row, request)


async def _start_with_id(services: AccessServices, row: Exec, request: ExecRequest) -> Exec:
    request = replace(request, exec_id=row.id, start_until=time.monotonic() + START_SECONDS)
    try:
        async with asyncio.timeout(START_SECONDS):
            await services.commands.start_command(row.workspace_id, request)
    except (CommandRefused, TimeoutError, OSError) as error:
        await _record_failure(services, row, is_certain=isinstance(error, CommandRefused))
        logger.warning("a command did not start", exec_id=row.id, error=str(error))
        raise InvalidState(_sentence(error)) from error
    return await refresh_row(services.engine, services.commands, row)


async def _record_failure(services: AccessServices, row: Exec, *, is_certain: bool) -> None:
    """Record that a command did not start. If that is uncertain, the next refresh finds out."""
    if not is_certain or await services.commands.find_command(row.workspace_id, row.id) is not None:
        return
    now = utc_now()
    changes = {"state": ExecState.LOST, "ended_at": now, "reason": "NotStarted"}
    async with services.engine.begin() as conn:
        await exec_gate.save_refreshed(conn, row, changes, now=now)


def _sentence(error: Exception) -> str:
    if isinstance(error, CommandRefused):
        return sentence(str(error))
    return "The command did not start: the workspace does not answer. Try again, or restart the workspace."


def _hash(request: ExecRequest) -> bytes:
    """Return a hash of what the caller has asked for. Settings of CodeHub are no part of it."""
    given = json.loads(request.to_json())
    asked = {name: given[name] for name in ("command", "env", "cwd", "tty", "stdin", "timeout_seconds")}
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).digest()
