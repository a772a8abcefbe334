"""The internal listener: its paths, limits on requests, and addresses that are in use."""

import asyncio
import shutil
import stat
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from codehub import internal_http
from codehub.internal_http import ListenError, Response, get, listen_and_serve
from tests.services import free_port, short_temp_dir
from tests.waiting import PATIENCE, until


async def hello() -> Response:
    return Response(200, b"hello\n", "text/plain")


async def broken() -> Response:
    raise ValueError("a defect")


HANDLERS = {"/hello": hello, "/broken": broken}


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory whose path is short enough for sockets."""
    path = short_temp_dir()
    yield path
    shutil.rmtree(path)


@pytest.fixture
async def address(directory: Path) -> AsyncIterator[str]:
    address = f"unix:{directory}/run/internal.sock"
    async with listen_and_serve([address], HANDLERS):
        yield address


async def fetch(address: str, path: str) -> tuple[int, bytes]:
    return await asyncio.to_thread(get, address, path, PATIENCE)


async def send(address: str, data: bytes, *, end: bool = False) -> bytes:
    """Send these bytes, and return everything that the listener sends until it closes."""
    reader, writer = await asyncio.open_unix_connection(address.removeprefix("unix:"))
    writer.write(data)
    if end:
        writer.write_eof()
    try:
        return await asyncio.wait_for(reader.read(), PATIENCE)
    finally:
        writer.close()


async def test_it_serves_its_paths_and_nothing_else(address: str) -> None:
    assert await fetch(address, "/hello") == (200, b"hello\n")
    assert await fetch(address, "/hello?module=x") == (200, b"hello\n")
    for path in ("/", "/hello/", "/api/v1/session", "//hello", "/HELLO"):
        assert (await fetch(address, path))[0] == 404, path
    assert (await fetch(address, "/broken"))[0] == 500
    head = await send(address, b"HEAD /hello HTTP/1.1\r\nHost: x\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n") and b"Content-Length: 6" in head
    assert head.endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"POST /hello HTTP/1.1\r\nContent-Length: 1\r\n\r\nx", 405),
        (b"GET /hello\r\n\r\n", 400),
        (b"GET http://x/hello HTTP/1.1\r\n\r\n", 400),
        (b"GET /hello HTTP/2\r\n\r\n", 400),
        (b"\x16\x03\x01\xff\xff\r\n\r\n", 400),
        (b"GET /" + b"a" * internal_http.MAX_HEAD, 431),
        (b"GET /hello HTTP/1.1\r\nX: " + b"a" * internal_http.MAX_HEAD + b"\r\n\r\n", 431),
    ],
)
async def test_an_unsupported_request_is_rejected(address: str, request_bytes: bytes, status: int) -> None:
    response = await send(address, request_bytes)
    assert response.startswith(b"HTTP/1.1 %d " % status), response
    assert (await fetch(address, "/hello"))[0] == 200


async def test_an_incomplete_request_is_dropped(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await send(address, b"GET /hello HT", end=True) == b""
    monkeypatch.setattr(internal_http, "HEAD_SECONDS", 0.05)
    assert (await send(address, b"GET /hello HTTP/1.1\r\n")).startswith(b"HTTP/1.1 408 ")


async def test_connections_beyond_the_limit_are_closed_at_once(address: str) -> None:
    path = address.removeprefix("unix:")
    silent = [await asyncio.open_unix_connection(path) for _ in range(internal_http.MAX_CONNECTIONS)]
    try:
        with pytest.raises(ConnectionError):
            await fetch(address, "/hello")
    finally:
        for _, writer in silent:
            writer.close()
    answered = False

    async def poll() -> None:
        nonlocal answered
        while not answered:
            try:
                answered = (await fetch(address, "/hello"))[0] == 200
            except ConnectionError:
                await asyncio.sleep(0.01)

    polling = asyncio.create_task(poll())
    await until(polling.done, "the listener to answer again")
    await polling


async def test_only_its_own_user_may_connect_and_the_socket_is_removed(directory: Path) -> None:
    path = directory / "internal.sock"
    async with listen_and_serve([f"unix:{path}"], HANDLERS):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not path.exists()


async def test_a_stale_socket_is_replaced_and_one_in_use_is_not(address: str, directory: Path) -> None:
    with pytest.raises(ListenError, match="in use"):
        internal_http.listen([address])
    assert (await fetch(address, "/hello"))[0] == 200
    stale = f"unix:{directory}/stale.sock"
    internal_http.listen([stale]).close()
    async with listen_and_serve([stale], HANDLERS):
        assert (await fetch(stale, "/hello"))[0] == 200
    precious = directory / "file"
    precious.write_text("precious")
    with pytest.raises(ListenError):
        internal_http.listen([f"unix:{precious}"])
    assert precious.read_text() == "precious"


async def test_a_second_part_takes_the_next_address(directory: Path) -> None:
    addresses = [f"unix:{directory}/api-internal.sock", f"unix:{directory}/api-internal-2.sock"]
    async with listen_and_serve(addresses, HANDLERS), listen_and_serve(addresses, HANDLERS):
        assert [(await fetch(address, "/hello"))[0] for address in addresses] == [200, 200]
        with pytest.raises(ListenError, match="in use"):
            internal_http.listen(addresses)


async def test_it_listens_on_tcp() -> None:
    address = f"tcp:127.0.0.1:{free_port()}"
    async with listen_and_serve([address], HANDLERS):
        assert await fetch(address, "/hello") == (200, b"hello\n")
        with pytest.raises(ListenError):
            internal_http.listen([address])
