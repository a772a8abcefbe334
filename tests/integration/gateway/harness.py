"""A gateway on a free port, with upstreams that record exact bytes and an in-memory database."""

import asyncio
import contextlib
import hashlib
import math
import re
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from codehub.bus.tickets import Ticket
from codehub.database.gate import RecoverFrom
from codehub.database.gateway_queries import Route, SessionUser, StatusPageData
from codehub.domain.audit import Actor
from codehub.domain.conditions import initial_conditions
from codehub.domain.states import DesiredState, Operation, Phase
from codehub.domain.user_limits import Limits
from codehub.domain.workspace import Workspace
from codehub.gateway.config import GatewayConfig, Timeouts
from codehub.gateway.cookies import CookieGrant, sign
from codehub.gateway.http1.client_connection import ClientConnection
from codehub.gateway.metrics import GatewayMetrics
from codehub.gateway.server import Gateway
from tests.services import free_port
from tests.waiting import PATIENCE, until

KEY = b"k" * 32
ALICE, BOB = "01alice0000000000000000000", "01bob000000000000000000000"
MINE, THEIRS = "01hzy0000000000000000000aa", "01hzy0000000000000000000bb"
SESSION = "alice-session"
NEVER = 3600.0
"""Seconds: a timeout that expires only through `World.elapse`."""
LONG_TIMEOUTS = Timeouts(NEVER, NEVER, NEVER, NEVER, NEVER, NEVER, NEVER, drain=0.1)
"""Timeouts that no test reaches, except for a short drain of connections that a test left open."""
NAVIGATE = (
    "Sec-Fetch-Site: none\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: document\r\nAccept: text/html\r\n"
)

OWN_POLICY = (
    b"Content-Security-Policy: frame-ancestors 'self'\r\nCross-Origin-Resource-Policy: same-origin\r\n"
)
"""The fields that the gateway adds to a response of an IDE to its own page, or to no page."""
_POLICY = re.compile(
    rb"Content-Security-Policy: frame-ancestors [^\r]*\r\nCross-Origin-Resource-Policy: [^\r]*\r\n"
    rb"(?:Vary: (?:Origin, Referer|Sec-Fetch-Site)\r\n)?"
)


def session_hash(session: str) -> bytes:
    return hashlib.sha256(session.encode()).digest()


def make_workspace(workspace_id: str, phase: Phase, **changes: Any) -> Workspace:
    now = datetime.now(UTC)
    facts: dict[str, Any] = dict.fromkeys(Workspace.__dataclass_fields__) | {
        "id": workspace_id,
        "number": 1,
        "owner_id": ALICE,
        "name": "<b>mine</b>",
        "description": "",
        "image_ref": "code-server",
        "instance_backend": "process",
        "storage_backend": "local-dir",
        "home_store_key": workspace_id,
        "desired_state": DesiredState.STANDBY,
        "last_access_at": now,
        "conditions": initial_conditions(now),
        "phase": phase,
        "phase_changed_at": now,
        "operation": Operation.NONE,
        "error_count": 0,
        "created_at": now,
        "updated_at": now,
        "version": 0,
    }
    return Workspace(**(facts | changes))


class InMemoryFacts:
    """In-memory stand-in for the database, which counts lookups and records requests of users."""

    def __init__(self) -> None:
        self.session_users: dict[bytes, SessionUser] = {}
        self.token_users: dict[bytes, SessionUser] = {}
        self.routes: dict[str, Route] = {}
        self.page_data: dict[str, StatusPageData] = {}
        self.counted: list[Workspace] = []
        self.woken: list[tuple[str, str]] = []
        self.stopped: list[tuple[str, str]] = []
        self.recovered: list[tuple[str, Actor, RecoverFrom | None]] = []
        self.wake_error: Exception | None = None
        self.lookups = 0

    async def token_user(self, token_hash: bytes) -> SessionUser | None:
        return self.token_users.get(token_hash)

    async def session_user(self, id_hash: bytes) -> SessionUser | None:
        self.lookups += 1
        return self.session_users.get(id_hash)

    async def route(self, workspace_id: str) -> Route | None:
        self.lookups += 1
        return self.routes.get(workspace_id)

    async def status_page_data(self, workspace_id: str) -> StatusPageData | None:
        return self.page_data.get(workspace_id)

    async def counted_workspaces(self, owner_id: str, *, besides: str) -> list[Workspace]:
        return [item for item in self.counted if item.id != besides]

    async def wake(self, workspace_id: str, actor: str) -> None:
        self.woken.append((workspace_id, actor))
        if self.wake_error is not None:
            raise self.wake_error

    async def stop(self, workspace_id: str, actor: str) -> None:
        self.stopped.append((workspace_id, actor))

    async def recover(self, workspace_id: str, owner: Actor, source: RecoverFrom | None) -> None:
        self.recovered.append((workspace_id, owner, source))


class InMemoryTickets:
    def __init__(self) -> None:
        self.issued: dict[str, Ticket] = {}

    async def issue(self, ticket: Ticket) -> str:
        token = f"ticket{len(self.issued)}"
        self.issued[token] = ticket
        return token

    async def consume(self, token: str) -> Ticket | None:
        return self.issued.pop(token, None)


Script = Callable[["Upstream", asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Upstream:
    """Scripted server on a Unix socket, which records the heads of requests."""

    def __init__(self, path: Path, script: Script) -> None:
        self.address = f"unix:{path}"
        self.path = path
        self.script = script
        self.heads: list[bytes] = []
        self.connections = 0
        self.open = 0
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_unix_server(self._serve, self.path)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open += 1
        try:
            await self.script(self, reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            return
        finally:
            self.open -= 1
            writer.close()

    async def read_head(self, reader: asyncio.StreamReader) -> bytes:
        head = await reader.readuntil(b"\r\n\r\n")
        self.heads.append(head)
        return head

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()


def respond_with(response: bytes) -> Script:
    """Return a script that sends this response to every request without a body."""

    async def script(upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await upstream.read_head(reader)
            writer.write(response)
            await writer.drain()

    return script


HELLO = respond_with(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")


class Client:
    """Raw connection to the gateway."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes | str) -> None:
        self.writer.write(data.encode() if isinstance(data, str) else data)

    async def head(self) -> str:
        return (await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), PATIENCE)).decode("latin-1")

    async def response(self) -> tuple[str, bytes]:
        """Read a head, and the body that Content-Length or the end of the connection delimits."""
        head = await self.head()
        length = header(head, "content-length")
        if length is None:
            return head, await self.rest()
        return head, await asyncio.wait_for(self.reader.readexactly(int(length)), PATIENCE)

    async def rest(self) -> bytes:
        """Read until the gateway closes. A reset counts as an end."""
        data = b""
        with contextlib.suppress(ConnectionError):
            while piece := await asyncio.wait_for(self.reader.read(65536), PATIENCE):
                data += piece
        return data

    def close(self) -> None:
        self.writer.close()


def header(head: str, name: str) -> str | None:
    values = headers(head, name)
    return values[0] if values else None


def headers(head: str, name: str) -> list[str]:
    lines = (line.partition(":") for line in head.split("\r\n")[1:])
    return [value.strip() for key, _, value in lines if key.lower() == name.lower()]


def without_policy(data: bytes) -> bytes:
    """Remove the fields that the gateway adds to each response of a workspace.

    test_response_policy.py tests them.
    """
    return _POLICY.sub(b"", data)


def status(head: str) -> int:
    return int(head.split(" ", 2)[1])


class World:
    """Gateway with a fake database, a fake API and the running workspace MINE of Alice."""

    def __init__(
        self,
        directory: Path,
        *,
        apps: bool = True,
        scheme: str = "http",
        public: str = "",
        apps_domain: str = "",
        **config: Any,
    ) -> None:
        """Set up a gateway, on loopback names unless `public` and `apps_domain` name others."""
        self.directory = directory
        self.facts = InMemoryFacts()
        self.tickets = InMemoryTickets()
        self.api = Upstream(directory / "api.sock", HELLO)
        self.ide = Upstream(directory / "ide.sock", HELLO)
        port = free_port()
        self.platform = public or f"localhost:{port}"
        self.config = GatewayConfig(
            host="127.0.0.1",
            port=port,
            public_base_url=f"{scheme}://{self.platform}",
            apps_domain=(apps_domain or self.platform) if apps else "",
            api_upstream=self.api.address,
            database_url="",
            redis_url="",
            limits=Limits(2, 100),
            activity={"code-server": "vscode"},
            **({"timeouts": LONG_TIMEOUTS} | config),
        )
        self.metrics = GatewayMetrics(1)
        self.gateway = Gateway(self.config, self.facts, self.tickets, KEY, self.metrics.of_worker(0))
        self.gateway.route_cache._answered_at = math.inf  # the push channel always answers
        self.host = self.config.origins.workspace_host(MINE) if apps else self.platform
        self.facts.session_users[session_hash(SESSION)] = SessionUser(ALICE, "alice", time.time() + 3600)
        self.facts.session_users[session_hash("bob-session")] = SessionUser(BOB, "bob", time.time() + 3600)
        self.set_phase(MINE, Phase.RUNNING)

    def set_phase(
        self,
        workspace_id: str,
        phase: Phase,
        operation: Operation = Operation.NONE,
        image: str = "code-server",
        **changes: Any,
    ) -> None:
        upstream = self.ide.address if phase is Phase.RUNNING else None
        self.facts.routes[workspace_id] = Route(workspace_id, ALICE, phase, operation, upstream, image)
        workspace = make_workspace(workspace_id, phase, **({"operation": operation} | changes))
        self.facts.page_data[workspace_id] = StatusPageData(workspace, [])
        self.gateway.revocation.on_route_changed(workspace_id)

    def cookie(self, workspace_id: str = MINE, session: str = SESSION, host: str | None = None) -> str:
        grant = CookieGrant(session_hash(session), int(time.time()) + 3600)
        value = sign(KEY, grant, workspace_id, host or self.host)
        return f"{self.config.origins.workspace_cookie.decode()}={value}"

    def request(self, target: str = "/", method: str = "GET", host: str | None = None, more: str = "") -> str:
        """Return a request to the workspace's origin with its cookie and header lines."""
        start = f"{method} {target} HTTP/1.1\r\nHost: {host or self.host}\r\n"
        return f"{start}Cookie: {self.cookie()}\r\n{more}\r\n"

    def entrance(self, target: str = "/", session: str | None = SESSION, more: str = NAVIGATE) -> str:
        """Return a request to the workspace's path on the platform's origin."""
        cookie = f"Cookie: session={session}\r\n" if session else ""
        return f"GET /w/{MINE}{target} HTTP/1.1\r\nHost: {self.platform}\r\n{cookie}{more}\r\n"

    def elapse(self, seconds: float = NEVER) -> None:
        """Move each connection's deadline closer, as if this time had passed."""
        for connection in self.gateway._connections:
            connection.deadline -= seconds

    @property
    def connections(self) -> list[ClientConnection]:
        """Return the open connections of clients."""
        return cast(list[ClientConnection], list(self.gateway._connections))

    async def connect(self) -> Client:
        return Client(*await asyncio.open_connection("127.0.0.1", self.gateway.port))

    async def ask(self, request: str | bytes) -> tuple[str, bytes]:
        """Send one request and return the head and the body of the response."""
        client = await self.connect()
        client.send(request)
        try:
            return await client.response()
        finally:
            client.close()


@contextlib.asynccontextmanager
async def world(**options: Any) -> AsyncIterator[World]:
    with tempfile.TemporaryDirectory(prefix="gw-") as directory:
        made = World(Path(directory), **options)
        await made.api.start()
        await made.ide.start()
        async with made.gateway.listening():
            yield made
        await made.api.stop()
        await made.ide.stop()


async def wait_for_backpressure(made: World, sent: Callable[[], int]) -> None:
    """Wait until the gateway pauses an upstream, and `sent` stops growing."""
    seen = -1

    def is_paused() -> bool:
        nonlocal seen
        before, seen = seen, sent()
        return before == seen and any(each.write_paused for each in made.connections)

    await until(is_paused, "the upstream to be paused", every=0.1)


async def check_slow_readers(made: World, clients: list[Client], size: int = 16 << 20) -> None:
    """Check that each client receives its own response, if all read late and all buffers are full.

    Each response repeats one letter, which the client's request names.
    """

    async def repeat(upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        letter = (await upstream.read_head(reader)).split(b" ")[1][1:2]
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        for _ in range(size >> 16):
            writer.write(letter * 65536)
            await writer.drain()

    made.ide.script = repeat
    letters = dict(zip("abcdefgh", clients, strict=False))
    for number, (letter, client) in enumerate(letters.items(), start=1):
        client.send(made.request(f"/{letter}"))
        await client.head()
        paused = _paused(made, number)
        await until(paused, f"{number} clients to be paused, with all buffers full")
    for letter, client in letters.items():
        body = await asyncio.wait_for(client.reader.readexactly(size), PATIENCE)
        assert body.count(letter.encode()) == size
        client.close()


def _paused(made: World, count: int) -> Callable[[], bool]:
    return lambda: sum(each.write_paused for each in made.connections) == count
