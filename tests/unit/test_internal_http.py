"""The internal listener: three paths, bounded requests, and addresses that it does not take from others."""

import asyncio
import shutil
import stat
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from codehub import internal_http
from codehub.internal_http import Response, ListenError, get, listen_and_serve
from tests.services import free_port, short_temp_dir
from tests.waiting import PATIENCE, until


async def hello() -> Response:
    return Response(200, b"hello\n", "text/plain")


async def broken() -> Response:
    raise ValueError("a defect")


HANDLERS = {"/hello": hello, "/broken": broken}


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory whose path is short enough for sockets."""
    directory = short_temp_dir()
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
async def address(place: Path) -> AsyncIterator[str]:
    address = f"unix:{place}/run/internal.sock"
    async with listen_and_serve([address], HANDLERS):
        yield address


async def ask(address: str, path: str) -> tuple[int, bytes]:
    return await asyncio.to_thread(get, address, path, PATIENCE)


async def send(address: str, data: bytes, *, end: bool = False) -> bytes:
    """Return everything that the listener answers to these bytes before it closes."""
    reader, writer = await asyncio.open_unix_connection(address.removeprefix("unix:"))
    writer.write(data)
    if end:
        writer.write_eof()
    try:
        return await asyncio.wait_for(reader.read(), PATIENCE)
    finally:
        writer.close()


async def test_it_answers_its_paths_and_nothing_else(address: str) -> None:
    assert await ask(address, "/hello") == (200, b"hello\n")
    assert await ask(address, "/hello?module=x") == (200, b"hello\n")
    for path in ("/", "/hello/", "/api/v1/session", "//hello", "/HELLO"):
        assert (await ask(address, path))[0] == 404, path
    assert (await ask(address, "/broken"))[0] == 500
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
async def test_a_request_that_is_not_plain_is_refused(
    address: str, request_bytes: bytes, status: int
) -> None:
    answer = await send(address, request_bytes)
    assert answer.startswith(b"HTTP/1.1 %d " % status), answer
    assert (await ask(address, "/hello"))[0] == 200


async def test_a_request_that_breaks_off_or_never_ends_gets_no_place(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await send(address, b"GET /hello HT", end=True) == b""
    monkeypatch.setattr(internal_http, "HEAD_SECONDS", 0.05)
    assert (await send(address, b"GET /hello HTTP/1.1\r\n")).startswith(b"HTTP/1.1 408 ")


async def test_connections_beyond_the_bound_are_closed_at_once(address: str) -> None:
    path = address.removeprefix("unix:")
    silent = [await asyncio.open_unix_connection(path) for _ in range(internal_http.MAX_CONNECTIONS)]
    try:
        with pytest.raises(ConnectionError):
            await ask(address, "/hello")
    finally:
        for _, writer in silent:
            writer.close()
    answered = False

    async def answers() -> None:
        nonlocal answered
        while not answered:
            try:
                answered = (await ask(address, "/hello"))[0] == 200
            except ConnectionError:
                await asyncio.sleep(0.01)

    asking = asyncio.create_task(answers())
    await until(asking.done, "the listener to answer again")
    await asking


async def test_only_its_own_user_may_connect_and_nothing_is_left_behind(place: Path) -> None:
    path = place / "internal.sock"
    async with listen_and_serve([f"unix:{path}"], HANDLERS):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not path.exists()


async def test_a_stale_socket_is_replaced_and_a_living_one_is_not(address: str, place: Path) -> None:
    with pytest.raises(ListenError, match="in use"):
        internal_http.listen([address])
    assert (await ask(address, "/hello"))[0] == 200
    stale = f"unix:{place}/stale.sock"
    internal_http.listen([stale]).close()
    async with listen_and_serve([stale], HANDLERS):
        assert (await ask(stale, "/hello"))[0] == 200
    precious = place / "file"
    precious.write_text("precious")
    with pytest.raises(ListenError):
        internal_http.listen([f"unix:{precious}"])
    assert precious.read_text() == "precious"


async def test_a_second_part_takes_the_next_address(place: Path) -> None:
    addresses = [f"unix:{place}/api-internal.sock", f"unix:{place}/api-internal-2.sock"]
    async with listen_and_serve(addresses, HANDLERS), listen_and_serve(addresses, HANDLERS):
        assert [(await ask(address, "/hello"))[0] for address in addresses] == [200, 200]
        with pytest.raises(ListenError, match="in use"):
            internal_http.listen(addresses)


async def test_it_listens_on_tcp_when_told_to() -> None:
    address = f"tcp:127.0.0.1:{free_port()}"
    async with listen_and_serve([address], HANDLERS):
        assert await ask(address, "/hello") == (200, b"hello\n")
        with pytest.raises(ListenError):
            internal_http.listen([address])
