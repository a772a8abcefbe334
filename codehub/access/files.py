"""`/workspaces/{id}/files`: files of a running workspace (ADR 0036)."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Header, Query, Request, Response
from pydantic import BaseModel, Field

from codehub.access.answers import Answer
from codehub.access.byte_stream import BYTES, SAFE_HEADERS
from codehub.access.file_calls import (
    file_session,
    file_stream,
    unless_disconnected,
    uploaded,
    uploading,
)
from codehub.access.file_requests import (
    FilePath,
    ModeText,
    Unsatisfiable,
    WakingQuery,
    decode_path,
    expected_etags,
    is_known,
    must_not_exist,
    parse_mode,
    requested_range,
)
from codehub.access.file_views import (
    FileListView,
    FileView,
    SearchView,
    UnpackedView,
    file_view,
    list_view,
    quoted,
    search_view,
    unpacked_view,
)
from codehub.access.permissions import WorkspaceId
from codehub.access.services import Shared
from codehub.asgi.callers import UseCaller
from codehub.asgi.errors import envelope
from codehub.asgi.fields import RequestBody
from codehub.domain.problems import ValidationFailed
from codehub.runtimes.files.names import LONGEST_ENCODED
from codehub.runtimes.files.protocol import (
    MAX_DEPTH,
    MAX_ENTRIES,
    MAX_MATCHES,
    DeleteRequest,
    DirectoryRequest,
    ListRequest,
    MoveRequest,
    SearchRequest,
    WriteRequest,
)

router = APIRouter(prefix="/workspaces/{workspace_id}/files", tags=["files"])

MOST_QUERY_CHARACTERS: Final = 1000
_BODY: Final[dict[str, Any]] = {
    "requestBody": {
        "required": True,
        "content": BYTES["content"],
    }
}
_Path = Annotated[str, Field(max_length=LONGEST_ENCODED)]
_Tags = Annotated[str | None, Header(max_length=8192)]


class Move(RequestBody):
    """A move of a file, directory or link. Paths are relative to the home unless absolute."""

    path: _Path = ""
    path_encoded: _Path | None = None
    to: _Path = ""
    to_encoded: _Path | None = None
    overwrite: bool = False


class NewDirectory(RequestBody):
    path: _Path = ""
    path_encoded: _Path | None = None
    parents: bool = False
    """Make the directories on its way too, and accept that it exists."""
    mode: ModeText | None = None


@router.get("", response_model=FileListView)
async def list_files(
    request: Request,
    workspace_id: WorkspaceId,
    path: FilePath,
    caller: UseCaller,
    services: Shared,
    waking: WakingQuery,
    answer: Answer,
    depth: Annotated[int, Query(ge=0, le=MAX_DEPTH)] = 1,
    limit: Annotated[int, Query(ge=0, le=MAX_ENTRIES)] = 1000,
) -> Response:
    """Return the facts of a path, and the entries below it. Links below it are not followed."""
    async with file_session(services, caller, workspace_id, waking) as session:
        await answer.begin()
        listed = await unless_disconnected(request, session.list(ListRequest(path, depth, limit)))
    return await _in_thread(lambda: list_view(listed, path))


@router.get("/content", response_class=Response, responses={200: BYTES, 206: BYTES, 304: {"content": {}}})
async def read_content(
    workspace_id: WorkspaceId,
    path: FilePath,
    caller: UseCaller,
    services: Shared,
    waking: WakingQuery,
    range_: Annotated[str | None, Header(alias="Range", max_length=200)] = None,
    if_range: Annotated[str | None, Header(max_length=200)] = None,
    if_none_match: _Tags = None,
) -> Response:
    """Send a regular file, or one range of it."""
    services.readers.check(caller.user_id)
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(file_session(services, caller, workspace_id, waking))
        facts = await session.open(path)
        headers = {"ETag": quoted(facts.etag), "Accept-Ranges": "bytes"}
        if is_known(facts.etag, if_none_match):
            return Response(status_code=304, headers={**SAFE_HEADERS, **headers})
        try:
            part = requested_range(facts.size, facts.etag, range_, if_range)
        except Unsatisfiable:
            message = f"Range: the file has {facts.size} bytes."
            return envelope(416, "RANGE_NOT_SATISFIABLE", message, {"Content-Range": f"bytes */{facts.size}"})
        start, length = (0, facts.size) if part is None else (part.start, part.length)
        if part is not None:
            headers["Content-Range"] = f"bytes {start}-{start + length - 1}/{facts.size}"
        headers["Content-Length"] = str(length)
        pieces = session.read(start, length)
        status = 200 if part is None else 206
        return file_stream(stack.pop_all(), pieces, services, caller, headers, status=status)


@router.put("/content", responses={201: {"model": FileView}}, openapi_extra=_BODY)
async def write_content(
    request: Request,
    response: Response,
    workspace_id: WorkspaceId,
    path: FilePath,
    caller: UseCaller,
    services: Shared,
    waking: WakingQuery,
    mode: Annotated[ModeText | None, Query()] = None,
    if_match: _Tags = None,
    if_none_match: _Tags = None,
) -> FileView:
    """Replace a file by the body when all of it has arrived, or make a new one (201)."""
    write = WriteRequest(path, parse_mode(mode), expected_etags(if_match), must_not_exist(if_none_match))
    with uploading(request, services, caller):  # before the session, which checks the credential
        async with file_session(services, caller, workspace_id, waking, writes=True) as session:
            written = await session.write(write, uploaded(request, services, caller, workspace_id))
    response.status_code = 201 if written.created else 200
    response.headers["ETag"] = quoted(written.facts.etag)
    return file_view(written.facts, path)


@router.delete("/content", status_code=204)
async def delete_file(
    request: Request,
    workspace_id: WorkspaceId,
    path: FilePath,
    caller: UseCaller,
    services: Shared,
    waking: WakingQuery,
    recursive: bool = False,
    if_match: _Tags = None,
) -> Response:
    """Delete a file or link, or a directory: with `recursive` even if it is not empty."""
    delete = DeleteRequest(path, recursive, expected_etags(if_match))
    async with file_session(services, caller, workspace_id, waking, writes=True) as session:
        await unless_disconnected(request, session.delete(delete))
    return Response(status_code=204)


@router.post("/move")
async def move_file(
    workspace_id: WorkspaceId, body: Move, caller: UseCaller, services: Shared, waking: WakingQuery
) -> FileView:
    """Move or rename a file. A name that is taken is a conflict, unless `overwrite` is set."""
    path = decode_path(body.path, body.path_encoded)
    to = decode_path(body.to, body.to_encoded, "to")
    async with file_session(services, caller, workspace_id, waking, writes=True) as session:
        moved = await session.move(MoveRequest(path, to, body.overwrite))
    return file_view(moved, to)


@router.post("/directory", responses={201: {"model": FileView}})
async def make_directory(
    response: Response,
    workspace_id: WorkspaceId,
    body: NewDirectory,
    caller: UseCaller,
    services: Shared,
    waking: WakingQuery,
) -> FileView:
    """Make a directory (201)."""
    path = decode_path(body.path, body.path_encoded)
    async with file_session(services, caller, workspace_id, waking, writes=True) as session:
        made = await session.make_directory(DirectoryRequest(path, body.parents, parse_mode(body.mode)))
    response.status_code = 201 if made.created else 200
    return file_view(made.facts, path)


@router.get("/search", response_model=SearchView)
async def search_files(
    request: Request,
    workspace_id: WorkspaceId,
    path: FilePath,
    caller: UseCaller,
    services: Shared,
    waking: WakingQuery,
    answer: Answer,
    q: Annotated[str, Query(min_length=1, max_length=MOST_QUERY_CHARACTERS)],
    in_: Annotated[Literal["names", "contents"], Query(alias="in")] = "names",
    limit: Annotated[int, Query(ge=1, le=MAX_MATCHES)] = 100,
) -> Response:
    """Find a text in the names of files, in any case, or in the lines of text files, as it is."""
    search = SearchRequest(path, _encode(q), in_ == "contents", limit)
    async with file_session(services, caller, workspace_id, waking) as session:
        await answer.begin()
        result = await unless_disconnected(request, session.search(search))
    return await _in_thread(lambda: search_view(result))


@router.get("/tar", response_class=Response, responses={200: BYTES})
async def download_tree(
    workspace_id: WorkspaceId, path: FilePath, caller: UseCaller, services: Shared, waking: WakingQuery
) -> Response:
    """Send what is below a directory as a tar archive. An aborted response is incomplete."""
    services.readers.check(caller.user_id)
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(file_session(services, caller, workspace_id, waking))
        pieces = await session.download(path)
        return file_stream(stack.pop_all(), pieces, services, caller, {})


@router.put("/tar", openapi_extra=_BODY)
async def upload_tree(
    request: Request,
    workspace_id: WorkspaceId,
    path: FilePath,
    caller: UseCaller,
    services: Shared,
    waking: WakingQuery,
) -> UnpackedView:
    """Unpack the body, a tar archive that is not compressed, into a directory."""
    with uploading(request, services, caller):  # before the session, which checks the credential
        async with file_session(services, caller, workspace_id, waking, writes=True) as session:
            unpacked = await session.upload(path, uploaded(request, services, caller, workspace_id))
    return unpacked_view(unpacked)


async def _in_thread(make: Callable[[], BaseModel]) -> Response:
    """Make a large response without delaying the streams of others."""
    body = await asyncio.to_thread(lambda: make().model_dump_json())
    return Response(body, media_type="application/json")


def _encode(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ValidationFailed("q: must be valid Unicode.") from error
