"""A gateway in a process of its own, with facts kept in memory, that tells about itself.

Run as a module it is that process: it reads its options from the command line, and one command a line.
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
from typing import Any

import uvloop

from codehub import log
from codehub.database.gateway_queries import Route, Visitor
from codehub.domain.images import Activity
from codehub.domain.limits import Limits
from codehub.domain.states import Operation, Phase
from codehub.gateway.certificate import CertificateFiles
from codehub.gateway.config import GatewayConfig
from codehub.gateway.server import Gateway
from tests.integration.gateway.harness import (
    ALICE,
    KEY,
    MINE,
    PATIENT,
    SESSION,
    Client,
    Facts,
    MemoryTickets,
    hash_of,
)
from tests.services import free_port
from tests.waiting import PATIENCE

FOREVER = 4_000_000_000.0
IMAGE = "other-ide"


@contextlib.contextmanager
def many_descriptors() -> Iterator[None]:
    """Thousands of sockets in this process, and in those that it starts."""
    before, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (before, most))


@dataclass
class Standalone:
    """The test's end of it."""

    process: asyncio.subprocess.Process
    port: int
    is_secure: bool = False

    @property
    def host(self) -> str:
        return f"{MINE}.localhost:{self.port}"

    @property
    def platform(self) -> str:
        return f"localhost:{self.port}"

    async def tell(self, command: str) -> Any:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(command.encode() + b"\n")
        return json.loads(await asyncio.wait_for(self.process.stdout.readline(), PATIENCE))

    async def census(self) -> dict[str, Any]:
        """What it holds: descriptors, tasks, entries of its tables, objects by type."""
        found: dict[str, Any] = await self.tell("census")
        return found

    async def connect(self, tls: ssl.SSLContext | None = None) -> Client:
        name = "localhost" if tls else None
        return Client(*await asyncio.open_connection("127.0.0.1", self.port, ssl=tls, server_hostname=name))

    async def waiting(self) -> int:
        """Return how many addresses and upstreams have something that waits for its turn."""
        return int(await self.tell("waiting"))

    async def cpu_seconds(self) -> float:
        """Return the processor time that its loop has used."""
        return float(await self.tell("cpu"))

    async def turns_begin(self) -> None:
        """Begin to time the turns of its loop."""
        await self.tell("turns begin")

    async def turns_end(self) -> list[float]:
        """Return the processor time of each turn of its loop since then."""
        turns: list[float] = await self.tell("turns end")
        return turns

    async def elapse(self, seconds: float) -> None:
        """Bring each connection's deadline nearer, as if this time had passed."""
        await self.tell(f"elapse {seconds}")

    def resident(self) -> int:
        """Bytes of memory that no other process shares."""
        pages = Path(f"/proc/{self.process.pid}/statm").read_text().split()
        return (int(pages[1]) - int(pages[2])) * os.sysconf("SC_PAGE_SIZE")

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))


@contextlib.asynccontextmanager
async def standalone(**options: Any) -> AsyncIterator[Standalone]:
    """`upstream` is the address of the workspace MINE; the rest are options of `_Held`."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", __spec__.name, json.dumps(options),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=1 << 24,
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    try:
        port = json.loads(await asyncio.wait_for(process.stdout.readline(), PATIENCE))
        yield Standalone(process, port, is_secure="tls" in options and options["tls"] is not None)
        process.stdin.close()
        assert await asyncio.wait_for(process.wait(), PATIENCE) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


class _Turns:
    """The processor time of each turn of the loop, which does not rest meanwhile.

    Garbage is not collected either: one collection takes as long as hundreds of turns.
    """

    def __init__(self) -> None:
        self._seen: list[float] = []
        self._is_on = False

    def begin(self) -> None:
        self._seen.clear()
        self._is_on = True
        gc.collect()
        gc.disable()
        self._mark()

    def _mark(self) -> None:
        self._seen.append(time.thread_time())
        if self._is_on:
            asyncio.get_running_loop().call_soon(self._mark)

    def end(self) -> list[float]:
        self._is_on = False
        gc.enable()
        return [after - before for before, after in pairwise(self._seen)]


class _Held:
    """The gateway in this process."""

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
            timeouts=replace(PATIENT, **timeouts),  # type: ignore[arg-type]
        )
        self.upstream = upstream
        self.turns = _Turns()
        self.facts = Facts()
        self.gateway = Gateway(config, self.facts, MemoryTickets(), KEY)
        self.gateway.route_cache._answered_at = math.inf  # the push channel never falls silent
        self.facts.visitors[hash_of(SESSION)] = Visitor(ALICE, "alice", FOREVER)
        self.set_phase(Phase.RUNNING)

    def set_phase(self, phase: Phase) -> None:
        upstream = self.upstream if phase is Phase.RUNNING else None
        self.facts.routes[MINE] = Route(MINE, ALICE, phase, Operation.NONE, upstream, IMAGE)
        self.gateway.revocation.route_changed(MINE)

    def census(self) -> dict[str, Any]:
        gc.collect()
        gateway = self.gateway
        route_cache, open_connections = gateway.route_cache, gateway.open_connections
        return {
            "descriptors": len(os.listdir("/proc/self/fd")),
            "tasks": len(asyncio.all_tasks()),
            "objects": Counter(f"{type(it).__module__}.{type(it).__name__}" for it in gc.get_objects()),
            "tables": {
                "connections": len(gateway._connections),
                "tasks of it": len(gateway._tasks),
                "idle upstreams": sum(map(len, gateway.pool._idle.values())),
                "pool": len(gateway.pool._idle),
                "live sessions": len(open_connections._of_session),
                "live workspaces": len(open_connections._of_workspace),
                "visitors": len(route_cache._visitors.known),
                "routes": len(route_cache._routes.known),
                "lookups": len(route_cache._visitors._lookups) + len(route_cache._routes._lookups),
                "seen": len(gateway.recorder._seen),
                "inspectors": len(gateway.recorder._inspectors),
                "checks": len(gateway.revocation._checks),
            },
        }

    async def serve(self) -> None:
        async with self.gateway.listening():
            print(json.dumps(self.gateway.port), flush=True)
            async for line in _lines():
                print(json.dumps(self._obey(line)), flush=True)

    def _obey(self, command: str) -> object:
        if command == "census":
            return self.census()
        if command == "waiting":
            return len(self.gateway.turns._groups)
        if command == "cpu":
            return time.thread_time()
        if command == "turns begin":
            return self.turns.begin()
        if command == "turns end":
            return self.turns.end()
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
    await _Held(**json.loads(sys.argv[1])).serve()


if __name__ == "__main__":
    uvloop.run(_main())
