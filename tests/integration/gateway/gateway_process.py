"""A gateway in a separate process, with an in-memory database, that reports its resource use.

Run as a module, this file is that process. It reads its options from the command line, and one
command per line from standard input.
"""

import asyncio
import contextlib
import gc
import json
import math
import os
import resource
import ssl
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import uvloop

from codehub import log
from codehub.database.gateway_queries import Route, SessionUser
from codehub.domain.images import Activity
from codehub.domain.states import Operation, Phase
from codehub.domain.user_limits import Limits
from codehub.gateway.certificate import CertificateFiles
from codehub.gateway.config import GatewayConfig
from codehub.gateway.http1.client_connection import ClientConnection
from codehub.gateway.server import Gateway
from tests.integration.gateway.harness import (
    ALICE,
    KEY,
    LONG_TIMEOUTS,
    MINE,
    SESSION,
    Client,
    InMemoryFacts,
    InMemoryTickets,
    session_hash,
)
from tests.services import free_port
from tests.waiting import PATIENCE

FAR_FUTURE = 4_000_000_000.0
IMAGE = "other-ide"


@contextlib.contextmanager
def raised_descriptor_limit() -> Iterator[None]:
    """Allow thousands of sockets in this process and in its children."""
    before, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (before, most))


@dataclass
class GatewayProcess:
    """Client of the process, as a test uses it."""

    process: asyncio.subprocess.Process
    port: int
    is_secure: bool = False

    @property
    def host(self) -> str:
        return f"{MINE}.localhost:{self.port}"

    @property
    def platform(self) -> str:
        return f"localhost:{self.port}"

    async def send_command(self, command: str) -> Any:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(command.encode() + b"\n")
        return json.loads(await asyncio.wait_for(self.process.stdout.readline(), PATIENCE))

    async def resources(self) -> dict[str, Any]:
        """Return the number of its descriptors, tasks, table entries and objects by type."""
        found: dict[str, Any] = await self.send_command("resources")
        return found

    async def connect(self, tls: ssl.SSLContext | None = None) -> Client:
        name = "localhost" if tls else None
        return Client(*await asyncio.open_connection("127.0.0.1", self.port, ssl=tls, server_hostname=name))

    async def waiting_groups(self) -> int:
        """Return how many addresses and upstreams have work that waits for its turn."""
        return int(await self.send_command("waiting groups"))

    async def paused_clients(self) -> int:
        """Return how many clients have not read all that was sent to them."""
        return int(await self.send_command("paused clients"))

    async def cpu_seconds(self) -> float:
        """Return the processor time that its loop has used."""
        return float(await self.send_command("cpu"))

    async def start_timing_turns(self) -> None:
        """Start to measure the turns of its event loop."""
        await self.send_command("start timing turns")

    async def stop_timing_turns(self) -> list[float]:
        """Return the processor time of each turn of its event loop since the start."""
        turns: list[float] = await self.send_command("stop timing turns")
        return turns

    async def elapse(self, seconds: float) -> None:
        """Move each connection's deadline closer, as if this time had passed."""
        await self.send_command(f"elapse {seconds}")

    def resident(self) -> int:
        """Return the bytes of memory that no other process shares."""
        pages = Path(f"/proc/{self.process.pid}/statm").read_text().split()
        return (int(pages[1]) - int(pages[2])) * os.sysconf("SC_PAGE_SIZE")

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))


@contextlib.asynccontextmanager
async def gateway_process(**options: Any) -> AsyncIterator[GatewayProcess]:
    """Run the process with the options of `_CommandServer`. `upstream` is the address of MINE."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", __spec__.name, json.dumps(options),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=1 << 24,
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    try:
        port = json.loads(await asyncio.wait_for(process.stdout.readline(), PATIENCE))
        yield GatewayProcess(process, port, is_secure="tls" in options and options["tls"] is not None)
        process.stdin.close()
        assert await asyncio.wait_for(process.wait(), PATIENCE) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


class _TurnTimer:
    """Timer of the event loop's turns, which keeps the loop from sleeping.

    It also disables garbage collection: one collection takes as long as hundreds of turns.
    """

    def __init__(self) -> None:
        self._times: list[float] = []
        self._is_on = False

    def start(self) -> None:
        self._times.clear()
        self._is_on = True
        gc.collect()
        gc.disable()
        self._mark()

    def _mark(self) -> None:
        self._times.append(time.thread_time())
        if self._is_on:
            asyncio.get_running_loop().call_soon(self._mark)

    def stop(self) -> list[float]:
        self._is_on = False
        gc.enable()
        return [after - before for before, after in pairwise(self._times)]


class _CommandServer:
    """The gateway in this process, and the commands that a test sends to it."""

    def __init__(
        self,
        upstream: str,
        max_connections: int = 10_000,
        max_connections_per_address: int = 0,
        port: int | None = None,
        api: str = "",
        activity: Activity = "any",
        tls: list[str] | None = None,
        **timeouts: float,
    ) -> None:
        port = port or free_port()
        scheme = "https" if tls else "http"
        config = GatewayConfig(
            host="127.0.0.1",
            port=port,
            public_base_url=f"{scheme}://localhost:{port}",
            apps_domain=f"localhost:{port}",
            api_upstream=api or upstream,
            activity={IMAGE: activity},
            tls=CertificateFiles(*map(Path, tls)) if tls else None,
            database_url="",
            redis_url="",
            limits=Limits(2, 100),
            max_connections=max_connections,
            max_connections_per_address=max_connections_per_address,
            timeouts=replace(LONG_TIMEOUTS, **timeouts),  # type: ignore[arg-type]
        )
        self.upstream = upstream
        self.turns = _TurnTimer()
        self.facts = InMemoryFacts()
        self.gateway = Gateway(config, self.facts, InMemoryTickets(), KEY)
        self.gateway.route_cache._answered_at = math.inf  # the push channel always answers
        self.facts.session_users[session_hash(SESSION)] = SessionUser(ALICE, "alice", FAR_FUTURE)
        self.set_phase(Phase.RUNNING)

    def set_phase(self, phase: Phase) -> None:
        upstream = self.upstream if phase is Phase.RUNNING else None
        self.facts.routes[MINE] = Route(MINE, ALICE, phase, Operation.NONE, upstream, IMAGE)
        self.gateway.revocation.on_route_changed(MINE)

    def resources(self) -> dict[str, Any]:
        gc.collect()
        gateway = self.gateway
        route_cache, open_connections = gateway.route_cache, gateway.open_connections
        return {
            "descriptors": len(os.listdir("/proc/self/fd")),
            "tasks": len(asyncio.all_tasks()),
            "objects": Counter(f"{type(item).__module__}.{type(item).__name__}" for item in gc.get_objects()),
            "tables": {
                "connections": len(gateway._connections),
                "tasks of the server": len(gateway._tasks),
                "idle upstreams": sum(map(len, gateway.pool._idle.values())),
                "pool": len(gateway.pool._idle),
                "connected sessions": len(open_connections._of_session),
                "connected workspaces": len(open_connections._of_workspace),
                "session_users": len(route_cache._session_users.known),
                "routes": len(route_cache._routes.known),
                "lookups": len(route_cache._session_users._lookups) + len(route_cache._routes._lookups),
                "seen": len(gateway.recorder._seen),
                "inspectors": len(gateway.recorder._inspectors),
                "checks": len(gateway.revocation._checks),
            },
        }

    async def serve(self) -> None:
        async with self.gateway.listening():
            print(json.dumps(self.gateway.port), flush=True)
            async for line in _lines():
                print(json.dumps(self._execute(line)), flush=True)

    def _execute(self, command: str) -> object:
        if command == "resources":
            return self.resources()
        if command == "waiting groups":
            return len(self.gateway.turns._groups)
        if command == "paused clients":
            return sum(cast(ClientConnection, each).write_paused for each in self.gateway._connections)
        if command == "cpu":
            return time.thread_time()
        if command == "start timing turns":
            return self.turns.start()
        if command == "stop timing turns":
            return self.turns.stop()
        if command.startswith("elapse "):
            for connection in self.gateway._connections:
                connection.deadline -= float(command.split()[1])
            return None
        self.set_phase(Phase(command))
        return None


async def _lines() -> AsyncIterator[str]:
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        yield line.decode().strip()


async def _main() -> None:
    log.configure("gateway", "error")
    await _CommandServer(**json.loads(sys.argv[1])).serve()


if __name__ == "__main__":
    uvloop.run(_main())
