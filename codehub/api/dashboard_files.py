"""The built dashboard, served for every path outside the API."""

import errno
import os
from pathlib import Path
from typing import Final

from fastapi.responses import FileResponse, HTMLResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from codehub.api.errors import envelope

IMMUTABLE: Final = "public, max-age=31536000, immutable"
REVALIDATE: Final = "no-cache"

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

    async def respond(self, path: str, scope: Scope) -> Response:
        files = self._current_files()
        if files is None or self._dist is None:
            return HTMLResponse(_MISSING, status_code=503, headers={"Cache-Control": "no-store"})
        found, stat = _look_up(files, path)
        if stat is not None and Path(found).is_file():
            response = files.file_response(found, stat, scope)
            response.headers["Cache-Control"] = IMMUTABLE if path.startswith("assets/") else REVALIDATE
            return response
        if path.startswith("assets/"):
            return envelope(404, "NOT_FOUND", "This file does not exist.")
        return FileResponse(self._dist / "index.html", headers={"Cache-Control": REVALIDATE})

    def _current_files(self) -> StaticFiles | None:
        """Return the files, or None before the dashboard is built. Building it needs no restart."""
        if self._files is None:
            self._dist = self._fixed if self._fixed is not None else find_dist()
            if self._dist is not None and (self._dist / "index.html").is_file():
                self._files = StaticFiles(directory=self._dist)
        return self._files


def _look_up(files: StaticFiles, path: str) -> tuple[str, os.stat_result | None]:
    if not path or "\0" in path:
        return "", None
    try:
        return files.lookup_path(path)
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        return "", None  # no file can have this name
