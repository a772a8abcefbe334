"""The dashboard's files: compression and caching."""

import gzip
from pathlib import Path

import httpx
import pytest
from starlette.types import ASGIApp

from codehub.api import app
from codehub.api.dashboard_files import IMMUTABLE, REVALIDATE, Dashboard

SCRIPT = b"console.log('codehub');" * 200


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ASGIApp:
    (tmp_path / "assets").mkdir()
    (tmp_path / "assets" / "app-1a2b.js").write_bytes(SCRIPT)
    (tmp_path / "index.html").write_text("<!doctype html>")
    monkeypatch.setattr(app, "Dashboard", lambda: Dashboard(tmp_path))
    return app._fallback()


async def get(files: ASGIApp, path: str, accepts: str) -> tuple[httpx.Response, bytes]:
    """Return the response and its body as it was sent."""
    transport = httpx.ASGITransport(files)
    async with (
        httpx.AsyncClient(transport=transport, base_url="http://codehub") as client,
        client.stream("GET", path, headers={"Accept-Encoding": accepts}) as response,
    ):
        return response, b"".join([chunk async for chunk in response.aiter_raw()])


async def test_a_script_is_compressed_and_cached_for_good(files: ASGIApp) -> None:
    response, sent = await get(files, "/assets/app-1a2b.js", "gzip, deflate, br")
    assert response.headers["content-encoding"] == "gzip"
    assert gzip.decompress(sent) == SCRIPT
    assert response.headers["content-type"].startswith("text/javascript")
    assert response.headers["vary"] == "Accept-Encoding"
    assert response.headers["cache-control"] == IMMUTABLE


async def test_a_client_that_accepts_no_gzip_gets_the_plain_file(files: ASGIApp) -> None:
    response, sent = await get(files, "/assets/app-1a2b.js", "identity")
    assert "content-encoding" not in response.headers
    assert sent == SCRIPT
    assert response.headers["vary"] == "Accept-Encoding"


async def test_every_other_path_is_the_page_which_is_revalidated(files: ASGIApp) -> None:
    response, sent = await get(files, "/workspaces/1", "gzip")
    assert sent == b"<!doctype html>"
    assert response.headers["cache-control"] == REVALIDATE
