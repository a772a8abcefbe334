"""`/workspaces/{id}/archive`: the bytes of an archive of a home (ADR 0040)."""

import base64
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack
from typing import Annotated, Any, Final

import structlog
from fastapi import APIRouter, Header, Query, Response

from codehub.access.byte_stream import SAFE_HEADERS, ByteStream, StreamCut
from codehub.access.file_requests import ByteRange, Unsatisfiable, is_known, requested_range
from codehub.access.permissions import WorkspaceId, check_credential, find_own
from codehub.access.services import AccessServices, Shared
from codehub.asgi.callers import UseCaller
from codehub.asgi.errors import envelope
from codehub.database import archive_queries
from codehub.database.archive_queries import RecordedArchive
from codehub.database.credentials import Credential
from codehub.domain.archive_keys import archive_op_id_of
from codehub.domain.ids import is_ulid
from codehub.domain.problems import ArchiveDamaged, ArchiveNotFound, ArchiveStoreUnavailable, Gone
from codehub.domain.workspace import Workspace
from codehub.domain.workspace_names import as_host_name
from codehub.storage.archive.archives import ArchiveReader
from codehub.storage.errors import CorruptedArchive, StorageProblem

logger = structlog.get_logger(__name__)
router = APIRouter(prefix="/workspaces/{workspace_id}", tags=["workspaces"])

PIECE_BYTES: Final = 2 << 20
"""Read from the store at a time. Memory holds one piece of each download, and what is left of the last."""
_NONE: Final = "This workspace has no archive yet: it is archived when it is not used, or on request."
_REMOVED: Final = "This archive was removed. GET .../archives lists those that are kept."
_BYTES: Final[dict[str, Any]] = {
    "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
}


@router.get("/archive", response_class=Response, responses={200: _BYTES, 206: _BYTES, 304: {"content": {}}})
async def download_archive(
    workspace_id: WorkspaceId,
    caller: UseCaller,
    services: Shared,
    archive_op_id: Annotated[str | None, Query(max_length=100)] = None,
    range_: Annotated[str | None, Header(alias="Range", max_length=200)] = None,
    if_range: Annotated[str | None, Header(max_length=200)] = None,
    if_none_match: Annotated[str | None, Header(max_length=8192)] = None,
) -> Response:
    """Send an archive of the home, `home.tar.zst`, or one range of it: the current one unless chosen.

    `Repr-Digest` is the SHA-256 of the whole archive. An incomplete response means that the archive
    was removed, or that it could not be read on: request the rest with `Range` and `If-Range`. HEAD
    returns the same header fields.
    """
    services.readers.check(caller.user_id)
    workspace, recorded = await _find(services, caller, workspace_id, archive_op_id)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(services.downloads_per_user.slot(caller.user_id))
        archive = await _open(services, workspace, recorded)
        headers = _headers(workspace, recorded)
        if is_known(recorded.sha256, if_none_match):
            return Response(status_code=304, headers=headers)
        try:
            part = requested_range(recorded.bytes, recorded.sha256, range_, if_range)
        except Unsatisfiable:
            message = f"Range: the archive has {recorded.bytes} bytes."
            return envelope(
                416, "RANGE_NOT_SATISFIABLE", message, {"Content-Range": f"bytes */{recorded.bytes}"}
            )
        return ArchiveStream(stack.pop_all(), archive, part, services, caller, headers)


async def _find(
    services: AccessServices, caller: Credential, workspace_id: str, archive_op_id: str | None
) -> tuple[Workspace, RecordedArchive]:
    """Return the chosen or the current archive of the caller's own workspace."""
    async with services.transaction(caller) as conn:
        workspace = await find_own(conn, caller, workspace_id)
        if archive_op_id is None:
            if workspace.archive_key is None:
                raise ArchiveNotFound(_NONE)
            archive_op_id = archive_op_id_of(workspace.archive_key)
        elif not is_ulid(archive_op_id):
            raise ArchiveNotFound
        recorded = await archive_queries.find(conn, workspace_id, archive_op_id)
    if recorded is None:
        raise ArchiveNotFound
    if recorded.removed:
        raise Gone(_REMOVED)
    return workspace, recorded


async def _open(services: AccessServices, workspace: Workspace, recorded: RecordedArchive) -> ArchiveReader:
    try:
        archive = await services.archives.open(workspace.id, recorded)
    except CorruptedArchive as problem:
        logger.error("an archive is damaged", workspace_id=workspace.id, reason=problem.message)
        raise ArchiveDamaged from problem
    except StorageProblem as problem:
        logger.error("the archive store cannot be read", reason=problem.message)
        raise ArchiveStoreUnavailable(retry_after=10) from problem
    if archive is None:
        raise Gone("This archive is no longer in the archive store.")
    return archive


def _headers(workspace: Workspace, recorded: RecordedArchive) -> dict[str, str]:
    digest = base64.b64encode(bytes.fromhex(recorded.sha256)).decode()
    name = as_host_name(workspace.name, workspace.id)  # letters, digits and hyphens
    return {
        **SAFE_HEADERS,
        "Content-Disposition": f'attachment; filename="{name}-{recorded.created_at:%Y%m%d-%H%M%S}.tar.zst"',
        "Accept-Ranges": "bytes",
        "ETag": f'"{recorded.sha256}"',
        "Repr-Digest": f"sha-256=:{digest}:",
    }


class ArchiveStream(ByteStream):
    """Streaming response with the bytes of an archive, which also ends with the workspace."""

    def __init__(
        self,
        resources: AsyncExitStack,
        archive: ArchiveReader,
        part: ByteRange | None,
        services: AccessServices,
        caller: Credential,
        headers: Mapping[str, str],
    ) -> None:
        self._workspace_id, size = archive.fact.workspace_id, archive.fact.bytes
        start, length = (0, size) if part is None else (part.start, part.length)
        fields = {**headers, "Content-Length": str(length)}
        if part is not None:
            fields["Content-Range"] = f"bytes {start}-{start + length - 1}/{size}"
        pieces = _pieces(services, archive, start, length)
        status = 200 if part is None else 206
        super().__init__(pieces, services, caller, fields, status=status, resources=resources)

    def _watch(self, stack: AsyncExitStack, end: Callable[[], None]) -> None:
        super()._watch(stack, end)
        watchers, is_over = self._services.workspace_watchers, self._has_another_owner
        stack.enter_context(watchers.watch(self._workspace_id, is_over, end))

    def _has_another_owner(self, workspace: Workspace) -> bool:
        return workspace.owner_id != self._caller.user_id

    async def _check(self) -> None:
        """Raise if the credential or the workspace has changed since the call began."""
        async with self._services.transaction(self._caller) as conn:
            await check_credential(conn, self._caller)
            await find_own(conn, self._caller, self._workspace_id)


async def _pieces(
    services: AccessServices, archive: ArchiveReader, start: int, length: int
) -> AsyncIterator[bytes]:
    position, end = start, start + length
    while position < end:
        try:
            piece = await services.archives.read(archive, position, min(PIECE_BYTES, end - position))
        except StorageProblem as problem:
            logger.warning("a download of an archive was cut", reason=problem.message)
            raise StreamCut from problem
        yield piece
        position += len(piece)
