"""The dashboard's files: compression and caching."""

import asyncio
import gzip
from pathlib import Path

import httpx
import pytest
from starlette.types import ASGIApp

from codehub.api import app, dashboard_files
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


async def test_a_file_is_compressed_once_for_all_requests_until_it_changes(
    files: ASGIApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compressed = []
    original = dashboard_files._compress

    def compress(path: Path) -> bytes:
        compressed.append(path)
        return original(path)

    monkeypatch.setattr(dashboard_files, "_compress", compress)
    await asyncio.gather(*(get(files, "/assets/app-1a2b.js", "gzip") for _ in range(20)))
    assert len(compressed) == 1
    (tmp_path / "assets" / "app-1a2b.js").write_bytes(SCRIPT * 2)
    _, sent = await get(files, "/assets/app-1a2b.js", "gzip")
    assert gzip.decompress(sent) == SCRIPT * 2


async def test_a_client_that_accepts_no_gzip_gets_the_plain_file(files: ASGIApp) -> None:
    response, sent = await get(files, "/assets/app-1a2b.js", "identity")
    assert "content-encoding" not in response.headers
    assert sent == SCRIPT
    assert response.headers["vary"] == "Accept-Encoding"


async def test_a_range_of_a_script_is_not_compressed(files: ASGIApp) -> None:
    transport = httpx.ASGITransport(files)
    async with httpx.AsyncClient(transport=transport, base_url="http://codehub") as client:
        response = await client.get("/assets/app-1a2b.js", headers={"Range": "bytes=0-6"})
    assert (response.status_code, response.content) == (206, SCRIPT[:7])
    assert "content-encoding" not in response.headers


async def test_every_other_path_is_the_page_which_is_revalidated(files: ASGIApp) -> None:
    response, sent = await get(files, "/workspaces/1", "gzip")
    assert sent == b"<!doctype html>"
    assert response.headers["cache-control"] == REVALIDATE
