"""Floods of tiny messages: others are served nearly as if there were none.

The test compares processor time, because the machine's other work does not change it. The quiet client's
request waits for the gateway's loop twice: until it is passed on, and until its answer is. A flood adds twice
the time from a random moment to the end of the turn that the loop is in. To the median of requests it adds
less than the gateway and the upstream spend on one without the flood. To the slowest hundredth it adds less
than four times what the gateway spends on the slowest hundredth without it. Each figure is the median of
several rounds: a pause of the machine is in one of them, and a flood that holds others up is in all.
"""

import contextlib
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import pytest

from tests.integration.gateway import flooding, issuing
from tests.integration.gateway.crowd import request, upgrade
from tests.integration.gateway.flooding import Flood
from tests.integration.gateway.harness import MINE, Client
from tests.integration.gateway.standalone import Standalone, standalone
from tests.selection import sample
from tests.waiting import eventually

FLOODS = (
    "pipelined requests",
    "chunks of a request",
    "chunks of an answer",
    "frames of a client",
    "frames of a workspace",
)
ROUNDS = 5
NAMES = f"DNS:localhost,DNS:{MINE}.localhost,IP:127.0.0.1"


def what_it_sends(gateway: Standalone, flood: str) -> tuple[bytes, str]:
    """Return what each flooding client sends first, and what it then sends without end."""
    sent: dict[str, tuple[bytes, str]] = {
        "pipelined requests": (b"", "requests"),
        "chunks of a request": (
            request(gateway, "/", "Transfer-Encoding: chunked\r\n", "POST"),
            "tiny chunks",
        ),
        "chunks of an answer": (request(gateway, "/tiny-chunks"), ""),
        "frames of a client": (upgrade(gateway, "/frames"), "empty frames"),
        "frames of a workspace": (upgrade(gateway, "/empty-frames"), ""),
    }
    return sent[flood]


@dataclass
class Quiet:
    """A client that asks for one thing after the other."""

    gateway: Standalone
    client: Client
    upstream: int
    """The process that answers."""

    async def ask(self, times: int) -> None:
        for _ in range(times):
            self.client.send(f"GET /api/v1/x HTTP/1.1\r\nHost: {self.gateway.platform}\r\n\r\n")
            assert (await self.client.response())[1] == b"hello"

    async def cost(self, times: int) -> float:
        """Return the processor time of the gateway and the upstream for one request."""
        before = await self._cpu_seconds()
        await self.ask(times)
        return (await self._cpu_seconds() - before) / times

    async def _cpu_seconds(self) -> float:
        upstream = int(Path(f"/proc/{self.upstream}/schedstat").read_text().split()[0]) / 1e9
        return upstream + await self.gateway.cpu_seconds()

    async def turns(self, times: int) -> list[float]:
        """Return how long the turns of the gateway's loop are while it is asked."""
        await self.gateway.turns_begin()
        await self.ask(times)
        return await self.gateway.turns_end()


def wait_at(share: float, turns: list[float]) -> float:
    """Return the wait for the end of a turn that is not exceeded from this share of all moments."""
    whole, low, high = sum(turns), 0.0, max(turns)
    for _ in range(40):
        middle = (low + high) / 2
        if sum(turn - middle for turn in turns if turn > middle) > (1 - share) * whole:
            low = middle
        else:
            high = middle
    return high


@contextlib.asynccontextmanager
async def quiet_client(directory: Path, *, tls: bool = False, activity: str = "any") -> AsyncIterator[Quiet]:
    """Its upstream is the API. The floods have a workspace, and another address."""
    hostile, api = directory / "hostile.sock", directory / "api.sock"
    certificate = issuing.issue(directory, "served", names=NAMES) if tls else None
    files = [str(certificate.chain), str(certificate.key)] if certificate else None
    context = ssl.create_default_context(cafile=str(certificate.chain)) if certificate else None
    async with (
        flooding.workspace(str(hostile)),
        flooding.workspace(str(api)) as upstream,
        standalone(upstream=f"unix:{hostile}", api=f"unix:{api}", activity=activity, tls=files) as gateway,
    ):
        yield Quiet(gateway, await gateway.connect(context), upstream)


async def check(quiet: Quiet, flood: str, count: int, times: int, *, tls: bool = False) -> None:
    gateway = quiet.gateway
    await quiet.ask(times)
    usual = median([await quiet.cost(times) for _ in range(ROUNDS)])
    rounds = [await quiet.turns(times) for _ in range(ROUNDS)]
    slowest = 2 * median(sorted(turns)[-times // 50] for turns in rounds)  # each request has two turns
    first, again = what_it_sends(gateway, flood)
    async with flooding.flooding(Flood(gateway.port, count, first.decode(), again, tls=tls)):
        await eventually(gateway.waiting, f"{flood} to wait for their turn")
        await quiet.ask(times)
        rounds = [await quiet.turns(times) for _ in range(ROUNDS)]
    added = 2 * median(wait_at(0.5, turns) for turns in rounds)
    most_added = 2 * median(wait_at(0.99, turns) for turns in rounds)
    figures = [round(1e6 * seconds) for seconds in (usual, added, slowest, most_added)]
    print(f"{flood} x {count}: usual, added, slowest, added to the slowest, in us: {figures}")
    assert added < usual, (flood, count, figures)
    assert most_added < 4 * slowest, (flood, count, figures)


@pytest.mark.parametrize("flood", sample(FLOODS, 2, "floods"))
async def test_six_flooding_connections_hold_up_nobody(tmp_path: Path, flood: str) -> None:
    async with quiet_client(tmp_path) as quiet:
        await check(quiet, flood, 6, 50)


@pytest.mark.full
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("count", [1, 6, 64])
@pytest.mark.parametrize(
    ("flood", "activity"), [*((flood, "any") for flood in FLOODS), ("frames of a client", "vscode")]
)
async def test_any_number_of_flooding_connections_holds_up_nobody(
    tmp_path: Path, flood: str, activity: str, count: int, tls: bool
) -> None:
    async with quiet_client(tmp_path, tls=tls, activity=activity) as quiet:
        await check(quiet, flood, count, 100, tls=tls)
