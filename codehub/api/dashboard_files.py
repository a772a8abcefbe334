"""The built dashboard, served for every path outside the API."""

import asyncio
import errno
import gzip
import os
from pathlib import Path
from typing import Final

from fastapi.responses import HTMLResponse, Response
from starlette.datastructures import Headers
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from codehub.asgi.errors import envelope

IMMUTABLE: Final = "public, max-age=31536000, immutable"
REVALIDATE: Final = "no-cache"
SMALLEST: Final = 500
"""Size in bytes from which a file is compressed."""
COMPRESSIBLE: Final = (".css", ".html", ".js", ".json", ".map", ".svg", ".txt")
_KEPT_HEADERS: Final = ("cache-control", "etag", "last-modified", "vary")

_MISSING: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>CodeHub</title></head>
<body><h1>CodeHub</h1><p>The dashboard is not built yet. Run <code>make install</code> to build it.</p>
<p>The API works: <a href="/api/v1/openapi.json">/api/v1/openapi.json</a></p></body></html>
"""


def find_dist() -> Path | None:
    """Return the directory of the built dashboard, in an installed package or a checkout."""
    package = Path(__file__).resolve().parent.parent
    for candidate in (package / "dashboard", package.parent / "web" / "dist"):
        if (candidate / "index.html").is_file():
            return candidate
    return None


class Dashboard:
    """Static files, and the page for every other path: the dashboard routes on the client."""

    def __init__(self, dist: Path | None = None) -> None:
        self._fixed = dist
        self._dist: Path | None = None
        self._files: StaticFiles | None = None
        self._compressed = CompressedFiles()

    async def respond(self, path: str, scope: Scope) -> Response:
        files = self._current_files()
        if files is None or self._dist is None:
            return HTMLResponse(_MISSING, status_code=503, headers={"Cache-Control": "no-store"})
        found, stat = _look_up(files, path)
        if stat is not None and Path(found).is_file():
            response = await self._respond_with(files, Path(found), stat, scope)
            response.headers["Cache-Control"] = IMMUTABLE if path.startswith("assets/") else REVALIDATE
            return response
        if path.startswith("assets/"):
            return envelope(404, "NOT_FOUND", "This file does not exist.")
        page = self._dist / "index.html"
        response = await self._respond_with(files, page, page.stat(), scope)
        response.headers["Cache-Control"] = REVALIDATE
        return response

    async def _respond_with(
        self, files: StaticFiles, path: Path, stat: os.stat_result, scope: Scope
    ) -> Response:
        response = files.file_response(path, stat, scope)
        if path.suffix not in COMPRESSIBLE or stat.st_size < SMALLEST:
            return response
        response.headers["Vary"] = "Accept-Encoding"
        request = Headers(scope=scope)
        accepts_gzip = "gzip" in request.get("accept-encoding", "")
        if response.status_code != 200 or "range" in request or not accepts_gzip:
            return response
        headers = {name: response.headers[name] for name in _KEPT_HEADERS if name in response.headers}
        body = await self._compressed.get(path, stat)
        return Response(body, media_type=response.media_type, headers={"Content-Encoding": "gzip"} | headers)

    def _current_files(self) -> StaticFiles | None:
        """Return the files, or None before the dashboard is built. Building it needs no restart."""
        if self._files is None:
            self._dist = self._fixed if self._fixed is not None else find_dist()
            if self._dist is not None and (self._dist / "index.html").is_file():
                self._files = StaticFiles(directory=self._dist)
        return self._files


class CompressedFiles:
    """Cache of compressed files.

    A compression takes milliseconds, and anyone may request these files as often as they like.
    """

    def __init__(self) -> None:
        self._contents: dict[Path, tuple[tuple[int, int], bytes]] = {}
        self._lock = asyncio.Lock()

    async def get(self, path: Path, stat: os.stat_result) -> bytes:
        version = (stat.st_mtime_ns, stat.st_size)
        async with self._lock:  # so that each version is compressed once
            known = self._contents.get(path)
            if known is None or known[0] != version:
                content = await asyncio.to_thread(_compress, path)
                known = self._contents[path] = (version, content)
        return known[1]


def _compress(path: Path) -> bytes:
    return gzip.compress(path.read_bytes(), mtime=0)


def _look_up(files: StaticFiles, path: str) -> tuple[str, os.stat_result | None]:
    if not path or "\0" in path:
        return "", None
    try:
        return files.lookup_path(path)
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        return "", None  # no file can have this name
