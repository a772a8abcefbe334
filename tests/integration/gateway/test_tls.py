"""TLS with an operator's certificate."""

import asyncio
import json
import os
import shutil
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest
import websockets

from codehub.cli import up
from codehub.gateway.certificate import CertificateFiles
from codehub.gateway.tls_server import TlsServer
from codehub.settings import Settings
from tests.integration.gateway import issuing
from tests.integration.gateway.browser import Browser
from tests.integration.gateway.harness import (
    LONG_TIMEOUTS,
    MINE,
    NEVER,
    Client,
    Upstream,
    World,
    check_slow_readers,
    header,
    status,
    wait_for_backpressure,
    world,
)
from tests.waiting import PATIENCE, until

NAMES = f"DNS:localhost,DNS:{MINE}.localhost,IP:127.0.0.1"
Issue = Callable[[str], CertificateFiles]


@pytest.fixture(scope="module")
def issue(tmp_path_factory: pytest.TempPathFactory) -> Issue:
    directory = tmp_path_factory.mktemp("tls")
    return lambda name: issuing.issue(directory, name, names=NAMES)


@pytest.fixture(scope="module")
def files(issue: Issue) -> CertificateFiles:
    return issue("served")


def trusting(files: CertificateFiles) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(files.chain))


async def connect(made: World, context: ssl.SSLContext, name: str = "localhost") -> Client:
    opened = await asyncio.open_connection(
        "127.0.0.1", made.gateway.port, ssl=context, server_hostname=name, limit=1 << 20
    )
    return Client(*opened)


@pytest.fixture
async def secured(files: CertificateFiles) -> AsyncIterator[World]:
    async with world(scheme="https", tls=files) as made:
        yield made


async def test_a_workspace_is_entered_over_https(secured: World, files: CertificateFiles) -> None:
    browser = Browser(secured, dial=lambda name: connect(secured, trusting(files), name))
    link = await browser.find_ticket(f"https://{secured.platform}/w/{MINE}/a")
    assert link.startswith(f"https://{secured.host}/.codehub/enter?ticket=")
    arrived = await browser.navigate(link)
    cookie = header(arrived.head, "set-cookie") or ""
    assert cookie.startswith("__Host-codehub-workspace=") and cookie.endswith("; Secure")
    assert (await browser.navigate(arrived.location)).body == "hello"
    assert header(secured.ide.heads[0].decode(), "x-forwarded-proto") == "https"


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_tls_1_2_and_1_3_are_accepted(
    secured: World, files: CertificateFiles, version: ssl.TLSVersion
) -> None:
    context = trusting(files)
    context.minimum_version = context.maximum_version = version
    client = await connect(secured, context)
    client.send(secured.request())
    assert (await client.response())[1] == b"hello"
    client.close()


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
async def test_older_versions_are_refused(secured: World, files: CertificateFiles) -> None:
    context = trusting(files)
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = ssl.TLSVersion.TLSv1
    context.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(OSError):
        await connect(secured, context)


async def test_a_websocket_passes_and_ends_with_its_session(secured: World, files: CertificateFiles) -> None:
    async def echo(websocket: websockets.ServerConnection) -> None:
        async for message in websocket:
            await websocket.send(message)

    path = secured.directory / "echo.sock"
    async with websockets.unix_serve(echo, str(path), max_size=None):
        secured.ide.address = f"unix:{path}"
        secured.set_phase(MINE, secured.facts.routes[MINE].phase)
        async with websockets.connect(
            f"wss://{secured.host}/", host="127.0.0.1", port=secured.gateway.port, ssl=trusting(files),
            additional_headers={"Cookie": secured.cookie()}, origin=f"https://{secured.host}",
            max_size=None, proxy=None,
        ) as opened:  # fmt: skip
            for size in (1, 100_000, 3_000_000):
                await opened.send(b"x" * size)
                assert await opened.recv() == b"x" * size
            secured.gateway.revocation.on_session_ended(
                next(iter(secured.gateway.open_connections.sessions()))
            )
            await asyncio.wait_for(opened.wait_closed(), PATIENCE)


async def test_large_bodies_pass_both_ways_within_bounds(secured: World, files: CertificateFiles) -> None:
    size = 32 << 20
    relayed = 0

    async def mirror(upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal relayed
        await upstream.read_head(reader)
        await reader.readexactly(size)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        for _ in range(size >> 16):
            writer.write(b"y" * 65536)
            await writer.drain()
            relayed += 65536

    secured.ide.script = mirror
    client = await connect(secured, trusting(files))
    client.send(secured.request("/", "POST", more=f"Content-Length: {size}\r\n"))
    client.send(b"x" * size)
    assert status(await client.head()) == 200
    await wait_for_backpressure(secured, lambda: relayed)  # because the client does not read
    assert relayed < size
    assert len(await asyncio.wait_for(client.reader.readexactly(size), PATIENCE)) == size
    client.close()


async def test_each_slow_reader_receives_its_own_response(secured: World, files: CertificateFiles) -> None:
    await check_slow_readers(secured, [await connect(secured, trusting(files)) for _ in range(4)])


async def test_plain_http_is_a_400_that_names_https(secured: World) -> None:
    head, body = await secured.ask(f"GET / HTTP/1.1\r\nHost: {secured.platform}\r\n\r\n")
    assert status(head) == 400
    assert "https://" in json.loads(body)["error"]["message"]


async def test_silent_and_invalid_handshakes_are_closed(
    files: CertificateFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers: list[TlsServer] = []

    class RecordedServer(TlsServer):
        def open(self, backlog: int) -> None:
            servers.append(self)
            super().open(backlog)

    monkeypatch.setattr("codehub.gateway.server.TlsServer", RecordedServer)
    async with world(scheme="https", tls=files, timeouts=replace(LONG_TIMEOUTS, head=0.5)) as made:
        silent, halfway = await made.connect(), await made.connect()
        halfway.send(b"\x16\x03\x01\x02\x00\x01")
        broken = await made.connect()
        broken.send(b"\x16\x03\x01" + b"\xff" * 500)
        for client in (broken, silent, halfway):
            await client.rest()
        await until(lambda: len(made.gateway._tasks) == 1, "all tasks but the tick to end")
        servers[0]._handshake_timeout, made.gateway.timeouts = NEVER, LONG_TIMEOUTS
        client = await connect(made, trusting(files))
        client.send(made.request())
        assert (await client.response())[1] == b"hello"
        client.close()


async def test_connections_above_the_cap_get_a_503_and_handshakes_are_bounded(
    files: CertificateFiles,
) -> None:
    async with world(scheme="https", tls=files, max_connections=16) as made:
        inside = [await connect(made, trusting(files)) for _ in range(16)]
        client = await connect(made, trusting(files))
        assert status((await client.response())[0]) == 503
        silent = [await made.connect() for _ in range(16)]
        over = await made.connect()
        assert await over.rest() == b""
        for client in (*inside, *silent):
            client.close()


async def test_a_renewed_certificate_is_served_and_open_connections_continue(
    files: CertificateFiles, issue: Issue, tmp_path: Path
) -> None:
    renewed = issue("renewed")
    live = CertificateFiles(tmp_path / "chain.pem", tmp_path / "key.pem")
    shutil.copy(files.chain, live.chain)
    shutil.copy(files.key, live.key)
    async with world(scheme="https", tls=live) as made:
        old = await connect(made, trusting(files))
        served = made.gateway.certificate
        assert served is not None
        before = served.context
        for source, target in ((renewed.chain, live.chain), (renewed.key, live.key)):
            shutil.copy(source, f"{target}.new")
            os.replace(f"{target}.new", target)  # between the two the pair does not match
            served.refresh()
            assert (served.context is before) == (target == live.chain)
        new = await connect(made, trusting(renewed))
        for client in (old, new):
            client.send(made.request())
            assert (await client.response())[1] == b"hello"
            client.close()
        live.chain.unlink()
        served.refresh()
        (await connect(made, trusting(renewed))).close()


async def test_the_gateway_detects_a_renewed_certificate(
    files: CertificateFiles, issue: Issue, tmp_path: Path
) -> None:
    live = CertificateFiles(tmp_path / "chain.pem", tmp_path / "key.pem")
    shutil.copy(files.chain, live.chain)
    shutil.copy(files.key, live.key)
    async with world(scheme="https", tls=live) as made:
        served = made.gateway.certificate
        assert served is not None
        before = served.context
        renewed = issue("renewed later")
        shutil.copy(renewed.key, live.key)
        shutil.copy(renewed.chain, live.chain)
        await until(lambda: served.context is not before, "the renewed certificate")


async def test_draining_closes_idle_connections_and_the_listener(files: CertificateFiles) -> None:
    async with world(scheme="https", tls=files, timeouts=replace(LONG_TIMEOUTS, drain=NEVER)) as made:
        idle = await connect(made, trusting(files))
        idle.send(made.request())
        await idle.response()
        silent = await made.connect()
        await until(lambda: len(made.gateway._connections) == 1, "the connection")
    assert await idle.rest() == b""
    assert await silent.rest() == b""
    with pytest.raises(OSError):
        await made.connect()


async def test_up_detects_its_readiness_over_https(secured: World, files: CertificateFiles) -> None:
    settings = Settings(
        host="127.0.0.1", port=secured.gateway.port, tls_cert_file=files.chain, tls_key_file=files.key
    )
    assert await asyncio.to_thread(up._public_port_error, settings) is None
