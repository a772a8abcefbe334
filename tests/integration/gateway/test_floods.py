"""Floods of tiny messages hardly delay other clients.

The test compares processor time, because other work of the machine does not change it. A request of
the quiet client waits for the gateway's event loop twice: until the request is relayed, and until
its response is. A flood adds twice the time from a random moment to the end of the loop's current
turn. The test bounds the added time. For the median request, it is less than the gateway and the
upstream spend on one request without the flood. For the slowest hundredth, it is less than four
times what the gateway spends on the slowest hundredth without the flood. Each figure is the median
of several rounds, because a pause of the machine affects one round, and a flood affects all.
"""

import contextlib
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import pytest

from tests.integration.gateway import flooding, issuing
from tests.integration.gateway.client_group import request, upgrade
from tests.integration.gateway.flooding import Flood
from tests.integration.gateway.gateway_process import GatewayProcess, gateway_process
from tests.integration.gateway.harness import MINE, Client
from tests.selection import sample
from tests.waiting import eventually

FLOODS = (
    "pipelined requests",
    "request heads with long lists",
    "long response heads",
    "response heads with many fields",
    "interim responses",
    "chunks of a request",
    "chunks of a response",
    "frames of a client",
    "frames of a workspace",
)
ROUNDS = 5
NAMES = f"DNS:localhost,DNS:{MINE}.localhost,IP:127.0.0.1"


def flood_data(gateway: GatewayProcess, flood: str) -> tuple[bytes, str]:
    """Return what each flooding client sends first, and what it then sends without end."""
    sent: dict[str, tuple[bytes, str]] = {
        "pipelined requests": (b"", "requests"),
        "request heads with long lists": (b"", "long lists"),
        "long response heads": (request(gateway, "/long-heads"), "first"),
        "response heads with many fields": (request(gateway, "/many-fields"), "first"),
        "interim responses": (request(gateway, "/interim-heads"), "first"),
        "records of one byte": (
            request(gateway, "/", f"Content-Length: {10**12}\r\n", "POST"),
            "records",
        ),
        "chunks of a request": (
            request(gateway, "/", "Transfer-Encoding: chunked\r\n", "POST"),
            "tiny chunks",
        ),
        "chunks of a response": (request(gateway, "/tiny-chunks"), ""),
        "frames of a client": (upgrade(gateway, "/frames"), "empty frames"),
        "frames of a workspace": (upgrade(gateway, "/empty-frames"), ""),
    }
    return sent[flood]


@dataclass
class QuietClient:
    """Client that sends one request after the other."""

    gateway: GatewayProcess
    client: Client
    upstream: int
    """The id of the upstream's process."""

    async def send_requests(self, times: int) -> None:
        for _ in range(times):
            self.client.send(f"GET /api/v1/x HTTP/1.1\r\nHost: {self.gateway.platform}\r\n\r\n")
            assert (await self.client.response())[1] == b"hello"

    async def cpu_per_request(self, times: int) -> float:
        """Return the processor time of the gateway and the upstream for one request."""
        before = await self._cpu_seconds()
        await self.send_requests(times)
        return (await self._cpu_seconds() - before) / times

    async def _cpu_seconds(self) -> float:
        upstream = int(Path(f"/proc/{self.upstream}/schedstat").read_text().split()[0]) / 1e9
        return upstream + await self.gateway.cpu_seconds()

    async def turn_lengths(self, times: int) -> list[float]:
        """Return the lengths of the turns of the gateway's event loop during requests."""
        await self.gateway.start_timing_turns()
        await self.send_requests(times)
        return await self.gateway.stop_timing_turns()


def wait_quantile(share: float, turns: list[float]) -> float:
    """Return the quantile of the wait for the end of a turn, from a random moment."""
    whole, low, high = sum(turns), 0.0, max(turns)
    for _ in range(40):
        middle = (low + high) / 2
        if sum(turn - middle for turn in turns if turn > middle) > (1 - share) * whole:
            low = middle
        else:
            high = middle
    return high


@contextlib.asynccontextmanager
async def quiet_client(
    directory: Path, *, tls: bool = False, activity: str = "any"
) -> AsyncIterator[QuietClient]:
    """Run a gateway with a quiet client, whose upstream is the API. The floods use a workspace."""
    hostile, api = directory / "hostile.sock", directory / "api.sock"
    certificate = issuing.issue(directory, "served", names=NAMES) if tls else None
    files = [str(certificate.chain), str(certificate.key)] if certificate else None
    context = ssl.create_default_context(cafile=str(certificate.chain)) if certificate else None
    async with (
        flooding.workspace_process(str(hostile)),
        flooding.workspace_process(str(api)) as upstream,
        gateway_process(
            upstream=f"unix:{hostile}", api=f"unix:{api}", activity=activity, tls=files
        ) as gateway,
    ):
        yield QuietClient(gateway, await gateway.connect(context), upstream)


async def check(quiet: QuietClient, flood: str, count: int, times: int, *, tls: bool = False) -> None:
    gateway = quiet.gateway
    await quiet.send_requests(times)
    usual = median([await quiet.cpu_per_request(times) for _ in range(ROUNDS)])
    rounds = [await quiet.turn_lengths(times) for _ in range(ROUNDS)]
    slowest = 2 * median(sorted(turns)[-times // 50] for turns in rounds)  # each request has two turns
    first, again = flood_data(gateway, flood)
    async with flooding.flood_process(Flood(gateway.port, count, first.decode(), again, tls=tls)):
        await eventually(gateway.waiting_groups, f"{flood} to wait for their turn")
        await quiet.send_requests(times)
        rounds = [await quiet.turn_lengths(times) for _ in range(ROUNDS)]
    added = 2 * median(wait_quantile(0.5, turns) for turns in rounds)
    most_added = 2 * median(wait_quantile(0.99, turns) for turns in rounds)
    figures = [round(1e6 * seconds) for seconds in (usual, added, slowest, most_added)]
    print(f"{flood} x {count}: usual, added, slowest, added to the slowest, in us: {figures}")
    assert added < usual, (flood, count, figures)
    assert most_added < 4 * slowest, (flood, count, figures)


@pytest.mark.parametrize("flood", sample(FLOODS, 2, "floods"))
async def test_six_flooding_connections_do_not_delay_other_clients(tmp_path: Path, flood: str) -> None:
    async with quiet_client(tmp_path) as quiet:
        await check(quiet, flood, 6, 50)


async def test_tls_records_of_one_byte_do_not_delay_other_clients(tmp_path: Path) -> None:
    async with quiet_client(tmp_path, tls=True) as quiet:
        await check(quiet, "records of one byte", 6, 50, tls=True)


@pytest.mark.full
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("count", [1, 6, 64])
@pytest.mark.parametrize(
    ("flood", "activity"), [*((flood, "any") for flood in FLOODS), ("frames of a client", "vscode")]
)
async def test_any_number_of_flooding_connections_does_not_delay_other_clients(
    tmp_path: Path, flood: str, activity: str, count: int, tls: bool
) -> None:
    async with quiet_client(tmp_path, tls=tls, activity=activity) as quiet:
        await check(quiet, flood, count, 100, tls=tls)
