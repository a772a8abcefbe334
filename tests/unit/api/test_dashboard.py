"""The dashboard's files: compressed where the browser takes that, and kept as long as their names last."""

import gzip
from pathlib import Path

import pytest
from fastapi.responses import FileResponse, Response
from starlette.types import Scope

from codehub.api.dashboard import IMMUTABLE, REVALIDATE, Dashboard

SCRIPT = b"console.log('codehub');" * 200


@pytest.fixture
def dashboard(tmp_path: Path) -> Dashboard:
    (tmp_path / "assets").mkdir()
    (tmp_path / "assets" / "app-1a2b.js").write_bytes(SCRIPT)
    (tmp_path / "assets" / "logo-3c4d.png").write_bytes(b"png")
    (tmp_path / "index.html").write_text("<!doctype html>")
    return Dashboard(tmp_path)


def asking(path: str, accepts: str) -> Scope:
    headers = [(b"accept-encoding", accepts.encode())] if accepts else []
    return {"type": "http", "method": "GET", "path": f"/{path}", "headers": headers}


async def get(dashboard: Dashboard, path: str, accepts: str = "") -> Response:
    return await dashboard.answer(path, asking(path, accepts))


@pytest.mark.parametrize("accepts", ["gzip", "gzip, deflate, br", "br;q=1.0, GZIP;q=0.5", "*"])
async def test_scripts_are_compressed(dashboard: Dashboard, accepts: str) -> None:
    answer = await get(dashboard, "assets/app-1a2b.js", accepts)
    assert answer.headers["content-encoding"] == "gzip"
    assert gzip.decompress(bytes(answer.body)) == SCRIPT
    assert len(answer.body) < len(SCRIPT) / 2
    assert answer.headers["content-length"] == str(len(answer.body))
    assert answer.headers["content-type"].startswith("text/javascript")
    assert answer.headers["vary"] == "Accept-Encoding"
    assert answer.headers["cache-control"] == IMMUTABLE


@pytest.mark.parametrize("accepts", ["", "identity", "br", "gzip;q=0", "gzip; q=0.0"])
async def test_who_takes_no_gzip_gets_none(dashboard: Dashboard, accepts: str) -> None:
    answer = await get(dashboard, "assets/app-1a2b.js", accepts)
    assert isinstance(answer, FileResponse)
    assert "content-encoding" not in answer.headers
    assert answer.headers["vary"] == "Accept-Encoding"


async def test_a_file_that_changes_is_not_served_from_memory(dashboard: Dashboard, tmp_path: Path) -> None:
    await get(dashboard, "assets/app-1a2b.js", "gzip")
    (tmp_path / "assets" / "app-1a2b.js").write_bytes(b"other")
    answer = await get(dashboard, "assets/app-1a2b.js", "gzip")
    assert gzip.decompress(bytes(answer.body)) == b"other"


async def test_pictures_and_the_page_are_as_they_are(dashboard: Dashboard) -> None:
    picture = await get(dashboard, "assets/logo-3c4d.png", "gzip")
    assert "content-encoding" not in picture.headers
    assert picture.headers["cache-control"] == IMMUTABLE
    page = await get(dashboard, "workspaces/1", "gzip")
    assert page.headers["cache-control"] == REVALIDATE
