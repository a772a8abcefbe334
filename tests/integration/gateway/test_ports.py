"""Ports of a workspace: a separate origin for each, or a path below the workspace's."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from websockets.asyncio.client import connect
from websockets.asyncio.server import serve
from websockets.exceptions import ConnectionClosed, InvalidStatus

from codehub.database.gateway_queries import Route
from codehub.domain.states import Operation, Phase
from tests.integration.gateway.browser import Browser
from tests.integration.gateway.harness import (
    ALICE,
    HELLO,
    LONG_TIMEOUTS,
    MINE,
    NAVIGATE,
    NEVER,
    SESSION,
    THEIRS,
    Upstream,
    World,
    header,
    session_hash,
    status,
    world,
)
from tests.integration.gateway.test_tunnel import Echo
from tests.services import free_port
from tests.waiting import PATIENCE, until

FETCH = "Sec-Fetch-Site: same-origin\r\nSec-Fetch-Mode: cors\r\nSec-Fetch-Dest: empty\r\n"
GARBAGE = ("0", "65536", "00080", "-1", "9" * 40, "%D9%A3%D9%A0", "3000x", "", "3000%2f")


class FakePortBroker:
    """A keeper's port broker for the network of the test itself."""

    def __init__(self, path: Path, *, silent: bool = False) -> None:
        self.path = path
        self._silent = silent
        self._unanswered: list[socket.socket] = []

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.setblocking(False)
            listener.bind(str(self.path))
            listener.listen()
            loop = asyncio.get_running_loop()
            loop.add_reader(listener, self._answer, listener)
            yield
            loop.remove_reader(listener)
            self.path.unlink()
        for connection in self._unanswered:
            connection.close()

    def _answer(self, listener: socket.socket) -> None:
        connection, _ = listener.accept()
        if self._silent:
            self._unanswered.append(connection)
            return
        with connection, socket.socket() as four, socket.socket(socket.AF_INET6) as six:
            socket.send_fds(connection, [b"."], [four.fileno(), six.fileno()])


class App(Upstream):
    """App that listens on a port of the workspace."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        super().__init__(Path(), HELLO)
        self.host = host
        self.port = free_port()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, self.host, self.port)


@asynccontextmanager
async def listening(made: World, app: App | None = None) -> AsyncIterator[App]:
    app = app or App()
    await app.start()
    async with FakePortBroker(made.directory / "net.sock").listening():
        yield app
    await app.stop()


@pytest.fixture
async def app(origin_mode: World) -> AsyncIterator[App]:
    async with listening(origin_mode) as made:
        yield made


@pytest.fixture
async def path_app(path_mode: World) -> AsyncIterator[App]:
    async with listening(path_mode) as made:
        yield made


def host_of(made: World, port: int | str, workspace_id: str = MINE) -> str:
    return f"{port}--{workspace_id}.{made.platform}"


def to_port(made: World, port: int, target: str = "/", more: str = "", cookie: bool = True) -> str:
    host = host_of(made, port)
    shown = f"Cookie: {made.cookie(host=host)}\r\n" if cookie else ""
    return f"GET {target} HTTP/1.1\r\nHost: {host}\r\n{shown}{more}\r\n"


# A separate origin


async def test_a_port_is_entered_with_a_ticket(origin_mode: World, app: App) -> None:
    host, browser = host_of(origin_mode, app.port), Browser(origin_mode)
    answer = await browser.open(f"http://{host}/a?b=c")
    assert (answer.status, answer.body, answer.url) == (200, "hello", f"http://{host}/a?b=c")
    browser.jar[host] |= {"mine": "1", "session": SESSION}
    request = f"GET /a?b=c HTTP/1.1\r\nHost: {{}}\r\nCookie: {browser.cookies_of(host)}\r\n{NAVIGATE}\r\n"
    head, body = await origin_mode.ask(request.format(host))
    assert (status(head), body) == (200, b"hello")
    seen = app.heads[-1].decode()
    assert seen.startswith("GET /a?b=c HTTP/1.1\r\n") and "cookie: mine=1\r\n" in seen
    for secret in (SESSION, "codehub-workspace", "codehub-entry", "x-forwarded-prefix"):
        assert secret not in seen
    for other in (
        origin_mode.host,
        host_of(origin_mode, app.port + 1),
    ):  # the cookie is valid for no other host
        assert status((await origin_mode.ask(request.format(other)))[0]) == 302


async def test_a_ticket_for_one_port_is_valid_for_no_other(origin_mode: World, app: App) -> None:
    host = host_of(origin_mode, app.port)
    for at in (origin_mode.host, host_of(origin_mode, app.port + 1)):
        browser = Browser(origin_mode)
        link = await browser.find_ticket(f"{origin_mode.config.origins.entry_url(MINE, app.port)}/")
        assert urlsplit(link).netloc == host
        browser.jar[at] = browser.jar[host]
        answer = await browser.navigate(link.replace(host, at))
        assert header(answer.head, "set-cookie") is None


async def test_only_the_owner_reaches_a_port(origin_mode: World, app: App) -> None:
    below = f"/proxy/{app.port}/"
    assert status((await origin_mode.ask(to_port(origin_mode, app.port, more=FETCH, cookie=False)))[0]) == 401
    head, _ = await origin_mode.ask(origin_mode.entrance(below, None))
    assert header(head, "location") == f"http://{origin_mode.platform}/login?next=/w/{MINE}{below}"
    for more in (NAVIGATE, FETCH):
        assert status((await origin_mode.ask(origin_mode.entrance(below, "bob-session", more)))[0]) == 403
        unknown = origin_mode.entrance(below, SESSION, more).replace(MINE, THEIRS)
        assert status((await origin_mode.ask(unknown))[0]) == 404
    bob = origin_mode.cookie(session="bob-session", host=host_of(origin_mode, app.port))
    for more in (NAVIGATE, FETCH):
        request = to_port(origin_mode, app.port, more=f"{more}Cookie: {bob}\r\n", cookie=False)
        assert status((await origin_mode.ask(request))[0]) == 403
    assert not app.heads


@pytest.mark.parametrize("garbage", GARBAGE)
async def test_an_invalid_port_is_not_found(origin_mode: World, path_mode: World, garbage: str) -> None:
    for made in (origin_mode, path_mode):
        for more in (NAVIGATE, FETCH):
            for session in (SESSION, None):
                head, _ = await made.ask(made.entrance(f"/proxy/{garbage}/", session, more))
                assert status(head) == 404
        assert not made.ide.heads
    head, _ = await path_mode.ask(path_mode.entrance(f"/absproxy/{garbage}/x"))
    assert status(head) == 404
    for more in (NAVIGATE, FETCH):
        request = f"GET / HTTP/1.1\r\nHost: {host_of(origin_mode, garbage)}\r\n{more}\r\n"
        assert status((await origin_mode.ask(request))[0]) == (400 if "%" in garbage else 404)


async def test_ports_of_one_workspace_may_send_requests_to_each_other(origin_mode: World, app: App) -> None:
    origins = [
        f"http://{origin_mode.host}",
        f"http://{host_of(origin_mode, 1)}",
        f"http://{host_of(origin_mode, app.port)}",
    ]
    site = "Sec-Fetch-Mode: cors\r\nSec-Fetch-Site: "
    allowed = [f"Origin: {sender}\r\n{site}same-site\r\n" for sender in origins[:2]]
    allowed += [f"Origin: {sender}\r\n{site}cross-site\r\n" for sender in origins[:2]]  # as on *.localhost
    allowed += [f"Referer: {sender}/x?y\r\n{site}same-site\r\n" for sender in origins]
    allowed += [f"Origin: {origins[2]}\r\n{site}same-origin\r\n"]
    for more in allowed:
        assert status((await origin_mode.ask(to_port(origin_mode, app.port, more=more)))[0]) == 200, more
        refused = to_port(origin_mode, app.port, more=more, cookie=False)
        assert status((await origin_mode.ask(refused))[0]) == 401, more
    ide = origin_mode.request(more=f"Origin: http://{host_of(origin_mode, 1)}\r\n{site}same-site\r\n")
    assert status((await origin_mode.ask(ide))[0]) == 200


async def test_foreign_pages_may_not_send_requests(origin_mode: World, app: App) -> None:
    others = [
        f"http://{THEIRS}.{origin_mode.platform}", f"http://{host_of(origin_mode, app.port, THEIRS)}",
        f"http://{origin_mode.platform}", f"https://{origin_mode.host}", "http://evil.example", "null",
        f"http://{host_of(origin_mode, '0')}", f"http://x.{origin_mode.host}", f"http://{origin_mode.host}.evil.example",
    ]  # fmt: skip
    site = "Sec-Fetch-Mode: no-cors\r\nSec-Fetch-Site: "
    for other in others:
        for more in (f"Origin: {other}\r\n", f"Origin: {other}\r\n{site}same-site\r\n"):
            assert status((await origin_mode.ask(to_port(origin_mode, app.port, more=more)))[0]) == 403, more
            assert status((await origin_mode.ask(origin_mode.request(more=more)))[0]) == 403, more
        more = f"Referer: {other}/\r\n{site}same-site\r\n"
        assert status((await origin_mode.ask(to_port(origin_mode, app.port, more=more)))[0]) == 403, more
    assert (
        status((await origin_mode.ask(to_port(origin_mode, app.port, more=f"{site}same-site\r\n")))[0]) == 403
    )
    assert not app.heads and not origin_mode.ide.heads


# A path below the workspace's path


async def test_in_path_mode_an_app_gets_the_path_below_its_port_or_the_whole_path(
    path_mode: World, path_app: App
) -> None:
    below, above = f"/proxy/{path_app.port}", f"/absproxy/{path_app.port}"
    for target in (below, above, f"{below}?a=b"):
        head, _ = await path_mode.ask(path_mode.entrance(target))
        assert status(head) == 308
        slashed = target.replace("?", "/?") if "?" in target else f"{target}/"
        assert header(head, "location") == f"http://{path_mode.platform}/w/{MINE}{slashed}"
    more = "Authorization: Bearer chub_secret\r\nX-Forwarded-Prefix: /evil\r\n"
    for target, seen in ((f"{below}/x?y", "/x?y"), (f"{above}/x?y", f"/w/{MINE}{above}/x?y")):
        head, body = await path_mode.ask(path_mode.entrance(target, more=more))
        assert (status(head), body) == (200, b"hello")
        received = path_app.heads.pop().decode()
        assert received.startswith(f"GET {seen} HTTP/1.1\r\n")
        assert "chub_" not in received and SESSION not in received and "/evil" not in received
        prefix = f"x-forwarded-prefix: /w/{MINE}{below}\r\n"
        assert (prefix in received) is (seen == "/x?y")
        assert received.count("x-forwarded-prefix") == received.count(prefix)
    assert not path_mode.ide.heads
    for session, expected in (("bob-session", 403), ("gone", 401)):
        head, _ = await path_mode.ask(path_mode.entrance(f"{below}/", session, FETCH))
        assert status(head) == expected
    foreign = path_mode.entrance(f"{below}/", more="Origin: http://evil.example\r\n")
    assert status((await path_mode.ask(foreign))[0]) == 403
    assert not path_app.heads


# Apps


async def test_an_app_on_the_ipv6_loopback_address_is_reached(origin_mode: World) -> None:
    async with listening(origin_mode, App("::1")) as app:
        head, body = await origin_mode.ask(to_port(origin_mode, app.port))
        assert (status(head), body) == (200, b"hello")


@asynccontextmanager
async def echoing(made: World) -> AsyncIterator[tuple[Echo, int]]:
    server = Echo()
    async with (
        serve(server, "127.0.0.1", 0) as listener,
        FakePortBroker(made.directory / "net.sock").listening(),
    ):
        yield server, next(iter(listener.sockets)).getsockname()[1]


def open_websocket(made: World, port: int, **options: object) -> connect:
    host = host_of(made, port)
    return connect(
        f"ws://{host}/socket", host="127.0.0.1", port=made.gateway.port, proxy=None,
        additional_headers={"Cookie": made.cookie(host=host)}, **options,
    )  # fmt: skip


async def test_a_websocket_to_a_port_ends_when_its_permission_is_revoked(origin_mode: World) -> None:
    async with echoing(origin_mode) as (echo, port):
        with pytest.raises(InvalidStatus) as refused:
            async with open_websocket(origin_mode, port, origin="http://evil.example"):
                pass
        assert refused.value.response.status_code == 403
        for revoke in (
            lambda: origin_mode.gateway.revocation.on_session_ended(session_hash(SESSION)),
            lambda: origin_mode.set_phase(MINE, Phase.STANDBY),
        ):
            async with open_websocket(origin_mode, port, origin=f"http://{origin_mode.host}") as connection:
                origin_mode.gateway.recorder.collect()
                await connection.send("typing")
                assert await connection.recv() == "typing"
                assert MINE in origin_mode.gateway.recorder.collect()
                assert "permessage-deflate" in (echo.extensions[-1] or "")
                revoke()
                with pytest.raises(ConnectionClosed):
                    await asyncio.wait_for(connection.recv(), PATIENCE)
            await until(lambda: echo.open == 0, "the socket to end")


async def test_a_stop_closes_streams_and_idle_connections_to_ports(origin_mode: World, app: App) -> None:
    async def drip(upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await upstream.read_head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nx")
        await reader.read()

    assert status((await origin_mode.ask(to_port(origin_mode, app.port)))[0]) == 200
    assert app.open == 1, "kept for the next request"
    app.script = drip
    client = await origin_mode.connect()
    client.send(to_port(origin_mode, app.port, more="Connection: x\r\n").replace("GET", "POST", 1))
    assert status(await client.head()) == 200
    assert await client.reader.readexactly(1) == b"x"
    assert app.open == 2
    origin_mode.set_phase(MINE, Phase.STANDBY)
    assert await client.rest() == b""
    await until(lambda: app.open == 0, "every connection to end")


async def test_a_port_without_a_listener_is_a_502_page(origin_mode: World, app: App) -> None:
    port = free_port()
    origin_mode.gateway.recorder.collect()
    for language, text in (("en", f"Nothing listens on port {port} yet"), ("ko", f"포트 {port}")):
        more = f"{NAVIGATE}Accept-Language: {language}\r\n"
        head, body = await origin_mode.ask(to_port(origin_mode, port, "/x", more))
        assert status(head) == 502 and text in body.decode()
        assert '"pollPort": true' in body.decode() and "0.0.0.0" not in body.decode()
    head, body = await origin_mode.ask(to_port(origin_mode, port, more=FETCH))
    assert status(head) == 502 and f"port {port}".encode() in body
    assert not origin_mode.gateway.recorder.collect(), "a page that waits for an app is not activity"
    await origin_mode.ask(to_port(origin_mode, app.port, more=FETCH))
    assert MINE in origin_mode.gateway.recorder.collect()


async def test_only_a_navigation_to_a_port_wakes_its_workspace(origin_mode: World, app: App) -> None:
    origin_mode.set_phase(MINE, Phase.STANDBY)
    assert status((await origin_mode.ask(to_port(origin_mode, app.port, more=FETCH)))[0]) == 503
    assert not origin_mode.facts.woken
    head, _ = await origin_mode.ask(to_port(origin_mode, app.port, "/x", NAVIGATE))
    path = f"/proxy/{app.port}/x"
    assert header(head, "location") == f"http://{origin_mode.platform}/w/{MINE}{path}"
    head, body = await origin_mode.ask(origin_mode.entrance(path))
    assert status(head) == 200 and b"on its way" in body
    assert origin_mode.facts.woken == [(MINE, "alice")]


# Workspaces in the host's network


def ports_are_off(head: str, body: bytes) -> bool:
    return status(head) == 502 and b"Ports are off" in body


async def test_without_a_port_broker_ports_are_off(origin_mode: World) -> None:
    """Such a workspace is in the host's network, or belongs to a keeper of an older version."""
    app = App()
    await app.start()
    for more in (NAVIGATE, FETCH):
        assert ports_are_off(*await origin_mode.ask(to_port(origin_mode, app.port, more=more)))
    await app.stop()
    assert not app.heads


@pytest.mark.parametrize("address", ["127.0.0.1", "[::1]", "localhost", "0.0.0.0"])
async def test_the_hosts_loopback_cannot_be_reached_through_a_port(address: str) -> None:
    async with world() as origin_mode, world(apps=False) as path_mode:
        app = App("::1" if "[" in address else "127.0.0.1")
        await app.start()
        for made in (origin_mode, path_mode):
            upstream = f"tcp:{address}:{app.port}"
            route = Route(MINE, ALICE, Phase.RUNNING, Operation.NONE, upstream, "code-server")
            made.facts.routes[MINE] = route
            made.gateway.revocation.on_route_changed(MINE)
        for more in (NAVIGATE, FETCH):
            assert ports_are_off(*await origin_mode.ask(to_port(origin_mode, app.port, more=more)))
            assert ports_are_off(*await path_mode.ask(path_mode.entrance(f"/proxy/{app.port}/", more=more)))
        assert not app.heads
        head, _ = await origin_mode.ask(origin_mode.request())
        assert status(head) == 200, "the IDE is still reachable"
        await app.stop()


async def test_a_port_broker_that_does_not_respond_is_a_502() -> None:
    async with (
        world(timeouts=replace(LONG_TIMEOUTS, connect=0.2)) as made,
        FakePortBroker(made.directory / "net.sock", silent=True).listening(),
    ):
        head, _ = await made.ask(to_port(made, 3000, more=FETCH))
        assert status(head) == 502
        made.gateway.pool._connect_timeout = NEVER
        assert status((await made.ask(made.request()))[0]) == 200
