"""The fast path for repeated requests decides exactly as a full read does."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codehub.database.gateway_queries import Route, SessionUser
from codehub.domain.images import Activity
from codehub.domain.states import Operation, Phase
from codehub.domain.user_limits import Limits
from codehub.gateway import cookies
from codehub.gateway.config import GatewayConfig
from codehub.gateway.http1.client_connection import ClientConnection
from codehub.gateway.http1.request_fast_path import RequestFastPath
from codehub.gateway.http1.upstream import UpstreamConnection
from codehub.gateway.route_cache import RouteSource
from codehub.gateway.server import Gateway
from codehub.gateway.workspace_entry import Tickets
from tests.integration.gateway.harness import without_policy
from tests.unit.gateway.fake_transport import FakeTransport, deliver

ONE, TWO, FOREIGN = (f"{name:0>26}" for name in ("1", "2", "3"))
ADDRESSES = {ONE: "tcp:10.0.0.1", TWO: "tcp:10.0.0.2", FOREIGN: "tcp:10.0.0.3"}
IDE, APP = 8080, 3000
API = "tcp:127.0.0.1:1"
KEY = b"k" * 32
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class EmptySource:
    """The truth behind the cache; here all that is known is in memory."""

    def __getattr__(self, _name: str) -> Callable[..., Any]:
        async def unknown(*_: object) -> None:
            return None

        return unknown


class GatewayFixture:
    """A client's connection, and upstreams that answer each request at once."""

    def __init__(self, apps_domain: str = "", activity: Mapping[str, Activity] | None = None) -> None:
        config = GatewayConfig(
            host="", port=0, public_base_url="http://codehub.example", apps_domain=apps_domain,
            api_upstream=API, database_url="", redis_url="", limits=Limits(1, 1), activity=activity or {},
        )  # fmt: skip
        self.gateway = Gateway(config, cast(RouteSource, EmptySource()), cast(Tickets, None), KEY)
        self.route_cache = self.gateway.route_cache
        self.route_cache.channel_answered()
        for name in ("alice", "bob"):
            session = cookies.session_hash(name.encode())
            self.route_cache._session_users.known[session] = SessionUser(name, name, time.time() + 1000)
        for workspace_id, owner in ((ONE, "alice"), (TWO, "alice"), (FOREIGN, "bob")):
            upstream = f"{ADDRESSES[workspace_id]}:{IDE}"
            route = Route(workspace_id, owner, Phase.RUNNING, Operation.NONE, upstream, "any")
            self.route_cache._routes.known[workspace_id] = route
        addresses = [API, *(f"{host}:{port}" for host in ADDRESSES.values() for port in (IDE, APP))]
        self.upstreams = [self._upstream(address) for address in addresses]
        self.connect()

    def connect(self) -> None:
        self.client = ClientConnection(self.gateway)
        self.client.connection_made(cast(Any, FakeTransport()))

    @property
    def closed(self) -> bool:
        return cast(FakeTransport, self.client.transport).closed

    def _upstream(self, address: str) -> UpstreamConnection:
        connection = UpstreamConnection(address, self.gateway.pool)
        connection.connection_made(cast(Any, FakeTransport()))
        self.gateway.pool.put(connection, 0.0)
        return connection

    def ask(self, data: bytes) -> tuple[str, bytes]:
        """Return the upstream of a request and what that received, or else the gateway's status line."""
        client = cast(FakeTransport, self.client.transport)
        client.sent.clear()
        self.client.data_received(data)
        for upstream in self.upstreams:
            wire = cast(FakeTransport, upstream.transport)
            if wire.sent:
                seen = b"".join(wire.sent)
                wire.sent.clear()
                answer = ANSWER.removesuffix(b"ok") if seen.startswith(b"HEAD") else ANSWER
                deliver(upstream, answer)
                assert without_policy(b"".join(client.sent)) == answer
                return upstream.address, seen
        return "", b"".join(client.sent).partition(b"\r\n")[0]


def request(
    target: str,
    *lines: str,
    host: str = "codehub.example",
    cookie: str = "session=alice",
    method: str = "GET",
) -> bytes:
    first = f"{method} {target} HTTP/1.1"
    return "\r\n".join([first, f"Host: {host}", f"Cookie: {cookie}", *lines, "", ""]).encode()


def workspace_cookie(host: str) -> str:
    grant = cookies.CookieGrant(cookies.session_hash(b"alice"), int(time.time() + 1000))
    return f"codehub-workspace={cookies.sign(KEY, grant, ONE, host)}"


@pytest.fixture
def repeats(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """Whether each request that the fast path tried was a repeated one."""
    seen: list[bool] = []
    repeat = RequestFastPath.repeat

    def observed(self: RequestFastPath, *arguments: Any) -> object:
        relay = repeat(self, *arguments)
        seen.append(relay is not None)
        return relay

    monkeypatch.setattr(RequestFastPath, "repeat", observed)
    yield seen


def test_only_the_first_line_of_a_repeated_request_is_read(repeats: list[bool]) -> None:
    fixture = GatewayFixture()
    _, first = fixture.ask(request(f"/w/{ONE}/a?b=1", "X-A: 1"))
    _, second = fixture.ask(request(f"/w/{ONE}/c/d", "X-A: 1"))
    assert first.startswith(b"GET /a?b=1 HTTP/1.1\r\n")
    assert second == first.replace(b"/a?b=1", b"/c/d")
    assert repeats == [True]


def test_a_workspaces_own_origin(repeats: list[bool]) -> None:
    fixture = GatewayFixture("apps.example")
    host = f"{ONE}.apps.example"
    ask = [request(target, host=host, cookie=workspace_cookie(host)) for target in ("/a", "/b")]
    assert fixture.ask(ask[0])[1].startswith(b"GET /a HTTP")
    assert fixture.ask(ask[1])[1].startswith(b"GET /b HTTP")
    assert repeats == [True]


@pytest.mark.parametrize(
    "change",
    [
        lambda cache: cache.forget_credential(cookies.session_hash(b"alice")),
        lambda cache: cache.forget_route(ONE),
        lambda cache: cache.forget_user("alice"),
        lambda cache: cache.forget_all(),
        lambda cache: cache.channel_lost(),
        lambda cache: cache._routes.known.update({ONE: replace(cache._routes.known[ONE], owner_id="bob")}),
        lambda cache: cache._routes.known.update(
            {ONE: replace(cache._routes.known[ONE], phase=Phase.STANDBY)}
        ),
    ],
)
async def test_every_push_ends_the_fast_path(change: Callable[[Any], None], repeats: list[bool]) -> None:
    fixture = GatewayFixture()
    fixture.ask(request(f"/w/{ONE}/"))
    change(fixture.route_cache)
    assert fixture.ask(request(f"/w/{ONE}/"))[0] == ""
    assert repeats == [False]


def test_the_fast_path_ends_with_the_session(repeats: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    fixture = GatewayFixture()
    fixture.ask(request(f"/w/{ONE}/"))
    now = time.time() + 2000
    monkeypatch.setattr(time, "time", lambda: now)
    assert fixture.ask(request(f"/w/{ONE}/"))[1].startswith(b"HTTP/1.1 401")
    assert repeats == [False]


def test_assets_do_not_count_after_a_request_to_a_forwarded_port(repeats: list[bool]) -> None:
    """Otherwise an idle tab would keep its workspace awake. The IDE forwards ports as well."""
    fixture = GatewayFixture("apps.example", activity={"any": "vscode"})
    recorder, host = fixture.gateway.recorder, f"{ONE}.apps.example"
    for target, counts in (("/proxy/3000/", True), ("/static/a.js", False), ("/proxy/3000/", True)):
        fixture.ask(request(target, host=host, cookie=workspace_cookie(host)))
        assert bool(recorder.collect()) is counts
    assert repeats == [True, True]


def test_in_path_mode_a_port_and_the_ide_are_two_upstreams(repeats: list[bool]) -> None:
    fixture = GatewayFixture(activity={"any": "vscode"})
    ide, app = (f"{ADDRESSES[ONE]}:{port}" for port in (IDE, APP))
    below, above = f"/w/{ONE}/proxy/{APP}", f"/w/{ONE}/absproxy/{APP}"
    for target, upstream, seen, repeated in (
        (f"/w/{ONE}/x", ide, "/x", None),
        (f"{below}/x", app, "/x", False),
        (f"{below}/y?z", app, "/y?z", True),
        (f"{above}/x", app, f"{above}/x", False),
        (f"{above}/y", app, f"{above}/y", True),
        (f"/w/{ONE}/absproxy/x", "", "", False),
        (f"{above}/y", app, f"{above}/y", None),
        (f"/w/{ONE}/absproxy/{IDE}/", ide, f"/w/{ONE}/absproxy/{IDE}/", False),
        (f"{above}/y", app, f"{above}/y", False),
        ("/api/v1/x", API, "/api/v1/x", False),
        (f"{above}/y", app, f"{above}/y", None),
        (f"/w/{TWO}/absproxy/{APP}/", f"{ADDRESSES[TWO]}:{APP}", f"/w/{TWO}/absproxy/{APP}/", False),
        (f"/w/{ONE}/x", ide, "/x", False),
    ):
        repeats.clear()
        address, wire = fixture.ask(request(target))
        assert address == upstream, target
        assert not upstream or wire.startswith(f"GET {seen} HTTP/1.1\r\n".encode()), wire
        assert repeats == ([] if repeated is None else [repeated]), target


def test_a_ports_response_counts_and_the_request_does_not() -> None:
    fixture = GatewayFixture(activity={"any": "vscode"})
    for _ in range(2):
        fixture.ask(request(f"/w/{ONE}/proxy/{APP}/a.js"))
        assert fixture.gateway.recorder.collect()
    fixture.upstreams = []
    fixture.ask(request(f"/w/{ONE}/proxy/{APP}/a.js"))
    assert not fixture.gateway.recorder.collect()


def test_a_ports_own_origin(repeats: list[bool]) -> None:
    fixture = GatewayFixture("apps.example")
    host = f"{APP}--{ONE}.apps.example"
    for target in ("/a", "/proxy/1/"):
        address, wire = fixture.ask(request(target, host=host, cookie=workspace_cookie(host)))
        assert address == f"{ADDRESSES[ONE]}:{APP}" and wire.startswith(f"GET {target} HTTP".encode())
    assert repeats == [True]


async def test_fields_of_the_same_length_are_not_the_same(repeats: list[bool]) -> None:
    fixture = GatewayFixture()
    fixture.ask(request(f"/w/{ONE}/"))
    assert fixture.ask(request(f"/w/{ONE}/", cookie="session=alicf"))[0] == ""
    assert repeats == [False]


def test_after_another_kind_of_request_the_connection_still_ends_with_the_session() -> None:
    fixture = GatewayFixture()
    for target in (f"/w/{ONE}/", "/api/v1/session", f"/w/{ONE}/", f"/w/{ONE}/x", f"/w/{TWO}/", f"/w/{ONE}/"):
        fixture.ask(request(target))
    assert fixture.gateway.open_connections.has_workspace(ONE)
    fixture.gateway.open_connections.revoke_session(cookies.session_hash(b"alice"))
    assert fixture.closed


targets = st.sampled_from(
    [
        "/",
        "/x",
        "?q",
        "",
        "/../x",
        "/.codehub/x",
        "/a b",
        "/\x7f",
        "/#f",
        "//x",
        f"/proxy/{APP}/",
        f"/absproxy/{APP}/x",
        "/proxy/0/",
    ]
).flatmap(
    lambda rest: st.sampled_from([f"/w/{name}{rest}" for name in (ONE, TWO, FOREIGN, "x")] + [rest, "*"])
)
fields = st.lists(
    st.sampled_from(
        [
            "X-A: 1",
            "Connection: keep-alive",
            "Connection: x-a",
            "Content-Length: 0",
            "Origin: http://codehub.example",
            "Origin: http://evil.example",
            "Sec-Fetch-Site: cross-site",
            "Sec-Fetch-Mode: navigate",
            "Accept: text/html",
            " folded",
            "Cookie: session=bob",
        ]
    ),
    max_size=2,
)
people = st.sampled_from(["session=alice", "session=alice", "session=bob", "a=1"])
methods = st.sampled_from(["GET", "GET", "HEAD", "get"])


@st.composite
def connections(draw: st.DrawFn) -> list[bytes]:
    """Requests of one connection. Most of them differ only in their first line."""
    usual, cookie = draw(fields), draw(people)
    asked = []
    for target in draw(st.lists(targets, min_size=2, max_size=6)):
        lines = usual if draw(st.integers(0, 3)) else draw(fields)
        asked.append(request(target, *lines, cookie=cookie, method=draw(methods)))
    return asked


@settings(max_examples=150)
@given(connections())
async def test_the_fast_path_decides_as_a_full_read_does(asked: list[bytes]) -> None:
    """Compare each request on a used connection with the same one on a new connection."""
    fixture, fresh = GatewayFixture(), GatewayFixture()
    for data in asked:
        if fixture.closed:
            return
        fresh.connect()
        assert fixture.ask(data) == fresh.ask(data)
