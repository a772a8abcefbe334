"""A gateway on a free port, upstreams that record exact bytes, and facts kept in memory."""

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
from codehub.database.gateway_queries import Route, StatusPageData, Visitor
from codehub.domain.audit import Actor
from codehub.domain.conditions import initial_conditions
from codehub.domain.limits import Limits
from codehub.domain.states import DesiredState, Operation, Phase
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
"""Seconds: a limit that passes only by `World.elapse`."""
PATIENT = Timeouts(NEVER, NEVER, NEVER, NEVER, NEVER, NEVER, NEVER, drain=0.1)
"""No limit races a peer. The drain is short: it only waits for connections that a test has left open."""
NAVIGATE = (
    "Sec-Fetch-Site: none\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: document\r\nAccept: text/html\r\n"
)

OWN_POLICY = (
    b"Content-Security-Policy: frame-ancestors 'self'\r\nCross-Origin-Resource-Policy: same-origin\r\n"
)
"""What the gateway adds to an answer of an IDE that its own page, or no page, asked for."""
_POLICY = re.compile(
    rb"Content-Security-Policy: frame-ancestors [^\r]*\r\nCross-Origin-Resource-Policy: [^\r]*\r\n"
    rb"(?:Vary: (?:Origin, Referer|Sec-Fetch-Site)\r\n)?"
)


def hash_of(session: str) -> bytes:
    return hashlib.sha256(session.encode()).digest()


def a_workspace(workspace_id: str, phase: Phase, **changes: Any) -> Workspace:
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


class Facts:
    """What a database would say, and what was asked of it."""

    def __init__(self) -> None:
        self.visitors: dict[bytes, Visitor] = {}
        self.routes: dict[str, Route] = {}
        self.situations: dict[str, StatusPageData] = {}
        self.counts: list[Workspace] = []
        self.woken: list[tuple[str, str]] = []
        self.stopped: list[tuple[str, str]] = []
        self.recovered: list[tuple[str, Actor, RecoverFrom | None]] = []
        self.wake_problem: Exception | None = None
        self.asked = 0

    async def visitor(self, id_hash: bytes) -> Visitor | None:
        self.asked += 1
        return self.visitors.get(id_hash)

    async def route(self, workspace_id: str) -> Route | None:
        self.asked += 1
        return self.routes.get(workspace_id)

    async def status_page_data(self, workspace_id: str) -> StatusPageData | None:
        return self.situations.get(workspace_id)

    async def counted_workspaces(self, owner_id: str, *, besides: str) -> list[Workspace]:
        return [item for item in self.counts if item.id != besides]

    async def wake(self, workspace_id: str, actor: str) -> None:
        self.woken.append((workspace_id, actor))
        if self.wake_problem is not None:
            raise self.wake_problem

    async def stop(self, workspace_id: str, actor: str) -> None:
        self.stopped.append((workspace_id, actor))

    async def recover(self, workspace_id: str, owner: Actor, source: RecoverFrom | None) -> None:
        self.recovered.append((workspace_id, owner, source))


class MemoryTickets:
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
    """A server on a Unix socket that does what its script says and keeps every byte it got."""

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


def answering(response: bytes) -> Script:
    """Gives the same response to every request without a body."""

    async def script(upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await upstream.read_head(reader)
            writer.write(response)
            await writer.drain()

    return script


HELLO = answering(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")


class Client:
    """A raw connection to the gateway."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes | str) -> None:
        self.writer.write(data.encode() if isinstance(data, str) else data)

    async def head(self) -> str:
        return (await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), PATIENCE)).decode("latin-1")

    async def response(self) -> tuple[str, bytes]:
        """A head, and the body that its Content-Length or its end of connection delimits."""
        head = await self.head()
        length = header(head, "content-length")
        if length is None:
            return head, await self.rest()
        return head, await asyncio.wait_for(self.reader.readexactly(int(length)), PATIENCE)

    async def rest(self) -> bytes:
        """Everything until the gateway closes; a reset counts as an end."""
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
    """Leave out what the gateway adds to each answer of a workspace: see test_response_policy.py."""
    return _POLICY.sub(b"", data)


def status(head: str) -> int:
    return int(head.split(" ", 2)[1])


class World:
    """One gateway with its facts, its API and the running workspace MINE of Alice."""

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
        """`public` and `apps_domain` are names to serve other than loopback ones."""
        self.directory = directory
        self.facts = Facts()
        self.tickets = MemoryTickets()
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
            **({"timeouts": PATIENT} | config),
        )
        self.metrics = GatewayMetrics(1)
        self.gateway = Gateway(self.config, self.facts, self.tickets, KEY, self.metrics.of_worker(0))
        self.gateway.route_cache._answered_at = math.inf  # the push channel never falls silent
        self.host = self.config.origins.workspace_host(MINE) if apps else self.platform
        self.facts.visitors[hash_of(SESSION)] = Visitor(ALICE, "alice", time.time() + 3600)
        self.facts.visitors[hash_of("bob-session")] = Visitor(BOB, "bob", time.time() + 3600)
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
        workspace = a_workspace(workspace_id, phase, **({"operation": operation} | changes))
        self.facts.situations[workspace_id] = StatusPageData(workspace, [])
        self.gateway.revocation.route_changed(workspace_id)

    def cookie(self, workspace_id: str = MINE, session: str = SESSION, host: str | None = None) -> str:
        grant = CookieGrant(hash_of(session), int(time.time()) + 3600)
        value = sign(KEY, grant, workspace_id, host or self.host)
        return f"{self.config.origins.workspace_cookie.decode()}={value}"

    def request(self, target: str = "/", method: str = "GET", host: str | None = None, more: str = "") -> str:
        """A request to the workspace's origin with its cookie."""
        start = f"{method} {target} HTTP/1.1\r\nHost: {host or self.host}\r\n"
        return f"{start}Cookie: {self.cookie()}\r\n{more}\r\n"

    def entrance(self, target: str = "/", session: str | None = SESSION, more: str = NAVIGATE) -> str:
        cookie = f"Cookie: session={session}\r\n" if session else ""
        return f"GET /w/{MINE}{target} HTTP/1.1\r\nHost: {self.platform}\r\n{cookie}{more}\r\n"

    def elapse(self, seconds: float = NEVER) -> None:
        """Bring each connection's deadline nearer, as if this time had passed."""
        for connection in self.gateway._connections:
            connection.deadline -= seconds

    @property
    def connections(self) -> list[ClientConnection]:
        """Return the open connections of clients."""
        return cast(list[ClientConnection], list(self.gateway._connections))

    async def connect(self) -> Client:
        return Client(*await asyncio.open_connection("127.0.0.1", self.gateway.port))

    async def ask(self, request: str | bytes) -> tuple[str, bytes]:
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


async def held_back(made: World, sent: Callable[[], int]) -> None:
    """Wait until the gateway holds back an upstream, and `sent` counts no more of its bytes."""
    seen = -1

    def is_held_back() -> bool:
        nonlocal seen
        before, seen = seen, sent()
        return before == seen and any(each.write_paused for each in made.connections)

    await until(is_held_back, "the upstream to be held back", every=0.1)


async def read_slowly(made: World, clients: list[Client], size: int = 16 << 20) -> None:
    """Each asks for a letter, many times over, and reads it when all wait for each other: it is theirs."""

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
        await until(paused, f"{number} of them to wait, with all buffers full")
    for letter, client in letters.items():
        body = await asyncio.wait_for(client.reader.readexactly(size), PATIENCE)
        assert body.count(letter.encode()) == size
        client.close()


def _paused(made: World, count: int) -> Callable[[], bool]:
    return lambda: sum(each.write_paused for each in made.connections) == count
