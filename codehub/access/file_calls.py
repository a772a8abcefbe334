"""What all calls about files share: the agent, its bounds, and problems as responses."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from typing import Any, Final, TypeVar

from starlette.requests import ClientDisconnect, Request

from codehub.access.byte_stream import ByteStream, StreamCut
from codehub.access.exec_streams import record_input
from codehub.access.file_requests import Waking
from codehub.access.permissions import check_credential
from codehub.access.services import AccessServices
from codehub.access.waker import wake
from codehub.asgi.uvicorn_protocol import transport_of
from codehub.clock import utc_now
from codehub.database import file_changes
from codehub.database.credentials import Credential
from codehub.domain.problems import (
    FileConflict,
    Forbidden,
    InsufficientStorage,
    InvalidState,
    NotFound,
    PreconditionFailed,
    Problem,
    ValidationFailed,
    WorkspaceFailed,
    WorkspaceStalled,
    sentence,
)
from codehub.runtimes.files.client import FileSession, FilesUnavailable
from codehub.runtimes.files.connection import AgentFailed
from codehub.runtimes.files.protocol import FileCode, FileRefused

_T = TypeVar("_T")
_PROBLEMS: Final[Mapping[FileCode, type[Problem]]] = {
    FileCode.NOT_FOUND: NotFound,
    FileCode.DENIED: Forbidden,
    FileCode.CHANGED: PreconditionFailed,
    FileCode.NO_SPACE: InsufficientStorage,
    FileCode.INVALID: ValidationFailed,
}


@asynccontextmanager
async def file_session(
    services: AccessServices, caller: Credential, workspace_id: str, waking: Waking, *, writes: bool = False
) -> AsyncIterator[FileSession]:
    """Wake the workspace, and start a file agent in it. One that writes is a use of the workspace."""
    await wake(services, caller, workspace_id, waking.how, waking.within)
    if writes:
        await record_input(services, caller, workspace_id)
        await _record_by_token(services, caller, workspace_id)
    async with (
        services.agents_per_user.slot(caller.user_id),
        services.agents_per_workspace.slot(workspace_id),
    ):
        async with services.transaction(caller) as conn:
            await check_credential(conn, caller)
        with answering_file_problems():
            async with services.files.open_files(workspace_id) as session:
                yield session


async def _record_by_token(services: AccessServices, caller: Credential, workspace_id: str) -> None:
    if caller.is_token:
        async with services.transaction(caller) as conn:
            await file_changes.record_by_token(conn, workspace_id, actor=caller.actor_name, now=utc_now())


@contextmanager
def answering_file_problems() -> Iterator[None]:
    try:
        yield
    except FileRefused as error:
        raise _PROBLEMS.get(error.code, FileConflict)(sentence(error.message)) from error
    except ClientDisconnect as error:  # nobody reads this response
        raise ValidationFailed("The client closed the connection.") from error
    except FilesUnavailable as error:
        raise InvalidState(sentence(str(error))) from error
    except AgentFailed as error:
        kind = WorkspaceStalled if error.stalled else WorkspaceFailed
        raise kind(sentence(error.message)) from error


async def unless_disconnected(request: Request, work: Coroutine[Any, Any, _T]) -> _T:
    """Return the result of work that ends, with its agent, when the client goes."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        for each in (task, gone):
            each.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


@contextmanager
def uploading(request: Request, services: AccessServices, caller: Credential) -> Iterator[None]:
    """End an upload with its credential, and with this process."""
    transport = transport_of(request.scope)

    def end() -> None:
        if transport is not None:
            transport.abort()

    with ExitStack() as stack:
        stack.enter_context(services.readers.register(caller.user_id, end))
        stack.enter_context(services.credential_revocations.watch(caller, end))
        yield


async def uploaded(
    request: Request, services: AccessServices, caller: Credential, workspace_id: str
) -> AsyncGenerator[bytes, None]:
    """Yield the body, and count it as a use of the workspace for as long as it comes."""
    async for piece in request.stream():
        if piece:
            await record_input(services, caller, workspace_id)
            yield piece


def file_stream(
    agent: AsyncExitStack,
    pieces: AsyncIterator[bytes],
    services: AccessServices,
    caller: Credential,
    headers: Mapping[str, str],
    *,
    status: int = 200,
) -> ByteStream:
    """Return the streaming response of an agent, which ends with the response."""
    return ByteStream(_cut_on_problem(pieces), services, caller, headers, status=status, resources=agent)


async def _cut_on_problem(pieces: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """End the stream visibly when the agent fails: its head has been sent."""
    try:
        async for piece in pieces:
            yield piece
    except (FileRefused, AgentFailed) as error:
        raise StreamCut from error
