"""Requests per second, latency and CPU time per request, in interleaved rounds."""

import json
import os
import statistics
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from bench import table, tools
from bench.gateway import idle_websockets
from bench.gateway.stack import FILES, LOAD_CORE, Stack, Target, pinned, running_stack
from bench.machine import cpu_seconds
from bench.sampler import Sampler
from tests.services import Services

WARM_UP_SECONDS = 2
PEERS = {"configurable-http-proxy": "chp", "nginx": "nginx"}
HEADER = (
    "proxy", "per second (min–max)", *(f"rate × {peer}" for peer in PEERS.values()), "p50 ms", "p99 ms",
    "CPU µs each", *(f"CPU × {peer}" for peer in PEERS.values()), "errors", "noise %",
)  # fmt: skip


@dataclass(frozen=True)
class Sample:
    rate: float
    p50_ms: float
    p99_ms: float
    cpu_us: float
    errors: int
    noise: float = 0.0


def measure_http(target: Target, path: str, connections: int, seconds: int) -> Sample:
    command = pinned(
        LOAD_CORE, "wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--latency",
        "-s", FILES / "wrk_json.lua", target.http + path,
    )  # fmt: skip
    before = cpu_seconds(target.pids)
    environment = os.environ | ({"BENCH_COOKIE": target.cookie} if target.cookie else {})
    wrk = subprocess.run(
        command, capture_output=True, text=True, check=True, env=environment, timeout=seconds + 60
    )
    return _sample(wrk.stdout.split("JSON ", 1)[1], cpu_seconds(target.pids) - before)


def measure_websocket_echo(target: Target, connections: int, seconds: int) -> Sample:
    command = pinned(LOAD_CORE, "node", FILES / "wsload.mjs", target.ws, str(seconds), str(connections))
    environment = os.environ | {"WS_COOKIE": target.cookie}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as load:
        assert load.stdout is not None
        assert load.stdout.readline() == "START\n", f"{target.name} does not open WebSockets"
        before = cpu_seconds(target.pids)
        line = load.stdout.readline()
        used = cpu_seconds(target.pids) - before
    return _sample(line, used)


def _sample(line: str, cpu: float) -> Sample:
    result = json.loads(line)
    each = cpu / max(result["requests"], 1) * 1e6
    return Sample(result["rate"], result["p50_ms"], result["p99_ms"], each, result["errors"])


SCENARIOS: dict[str, Callable[[Target, int], Sample]] = {
    "100 B, 64 connections": lambda target, seconds: measure_http(target, "/small", 64, seconds),
    "100 KB, 64 connections": lambda target, seconds: measure_http(target, "/large", 64, seconds),
    "100 B, one connection": lambda target, seconds: measure_http(target, "/small", 1, seconds),
    "WebSocket echo of 64 B, 100 connections": lambda target, seconds: measure_websocket_echo(
        target, 100, seconds
    ),
}


def measure(directory: Path, sampler: Sampler, rounds: int, seconds: int) -> None:
    tools.require("nginx", "wrk", "taskset", "node")
    with ExitStack() as cleanup:
        stack = cleanup.enter_context(running_stack(directory))
        targets = [stack.upstreams(), stack.nginx(), *_http_proxy(stack)]
        targets.append(stack.codehub(cleanup.enter_context(Services.running())))
        for name, scenario in SCENARIOS.items():
            _show(name, _rounds(scenario, targets, sampler, rounds, seconds))
        idle_websockets.measure(targets)


def _http_proxy(stack: Stack) -> list[Target]:
    try:
        return [stack.http_proxy(tools.install_http_proxy())]
    except tools.MissingToolError as reason:
        print(f"Skipped configurable-http-proxy: {reason}", flush=True)
        return []


def _rounds(
    scenario: Callable[[Target, int], Sample],
    targets: list[Target],
    sampler: Sampler,
    rounds: int,
    seconds: int,
) -> dict[str, list[Sample]]:
    samples: dict[str, list[Sample]] = {target.name: [] for target in targets}
    for target in targets:
        scenario(target, min(seconds, WARM_UP_SECONDS))
    for _ in range(rounds):
        for target in targets:
            sample, noise = sampler.sample(partial(scenario, target, seconds))
            samples[target.name].append(replace(sample, noise=noise))
    return samples


def _show(scenario: str, samples: dict[str, list[Sample]]) -> None:
    table.print_table(f"Gateway: {scenario}", HEADER, [_row(name, samples) for name in samples])


def _row(name: str, samples: dict[str, list[Sample]]) -> list[str]:
    rows = samples[name]
    rate, cpu = _median(rows, "rate"), _median(rows, "cpu_us")
    peers = [samples.get(peer, []) for peer in PEERS]
    return [
        name, table.median_and_range([one.rate for one in rows], 0),
        *(table.ratio(rate, _median(peer, "rate")) for peer in peers),
        f"{_median(rows, 'p50_ms'):.2f}", f"{_median(rows, 'p99_ms'):.2f}",
        f"{cpu:.1f}" if cpu else "–",
        *(table.ratio(cpu, _median(peer, "cpu_us")) if cpu else "–" for peer in peers),
        str(sum(one.errors for one in rows)), f"{max(one.noise for one in rows):.1f}",
    ]  # fmt: skip


def _median(samples: list[Sample], figure: str) -> float:
    """Return the median of a figure, or zero for a proxy that was not measured."""
    return statistics.median(getattr(one, figure) for one in samples) if samples else 0.0
