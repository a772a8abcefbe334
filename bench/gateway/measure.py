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
from bench.gateway import idle
from bench.gateway.stack import KIT, LOAD_CORE, Stack, Target, pinned, stacked
from bench.machine import Quiet, cpu_seconds
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


def wrk(target: Target, path: str, connections: int, seconds: int) -> Sample:
    command = pinned(
        LOAD_CORE, "wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--latency", "-s", KIT / "wrk_json.lua",
        target.http + path,
    )  # fmt: skip
    before = cpu_seconds(target.pids)
    environment = os.environ | ({"BENCH_COOKIE": target.cookie} if target.cookie else {})
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env=environment, timeout=seconds + 60
    )
    return _sample(done.stdout.split("JSON ", 1)[1], cpu_seconds(target.pids) - before)


def echo(target: Target, connections: int, seconds: int) -> Sample:
    command = pinned(LOAD_CORE, "node", KIT / "wsload.mjs", target.ws, str(seconds), str(connections))
    environment = os.environ | {"WS_COOKIE": target.cookie}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as load:
        assert load.stdout is not None
        assert load.stdout.readline() == "START\n", f"{target.name} does not open WebSockets"
        before = cpu_seconds(target.pids)
        line = load.stdout.readline()
        used = cpu_seconds(target.pids) - before
    return _sample(line, used)


def _sample(line: str, cpu: float) -> Sample:
    found = json.loads(line)
    each = cpu / max(found["requests"], 1) * 1e6
    return Sample(found["rate"], found["p50_ms"], found["p99_ms"], each, found["errors"])


SCENARIOS: dict[str, Callable[[Target, int], Sample]] = {
    "100 B, 64 connections": lambda target, seconds: wrk(target, "/small", 64, seconds),
    "100 KB, 64 connections": lambda target, seconds: wrk(target, "/large", 64, seconds),
    "100 B, one connection": lambda target, seconds: wrk(target, "/small", 1, seconds),
    "WebSocket echo of 64 B, 100 connections": lambda target, seconds: echo(target, 100, seconds),
}


def measure(directory: Path, quiet: Quiet, rounds: int, seconds: int) -> None:
    tools.need("nginx", "wrk", "taskset", "node")
    with ExitStack() as ended:
        stack = ended.enter_context(stacked(directory))
        targets = [stack.upstreams(), stack.nginx(), *_http_proxy(stack)]
        targets.append(stack.codehub(ended.enter_context(Services.running())))
        for name, scenario in SCENARIOS.items():
            _show(name, _rounds(scenario, targets, quiet, rounds, seconds))
        idle.measure(targets)


def _http_proxy(stack: Stack) -> list[Target]:
    try:
        return [stack.http_proxy(tools.http_proxy())]
    except tools.MissingToolError as reason:
        print(f"Without configurable-http-proxy: {reason}", flush=True)
        return []


def _rounds(
    scenario: Callable[[Target, int], Sample], targets: list[Target], quiet: Quiet, rounds: int, seconds: int
) -> dict[str, list[Sample]]:
    samples: dict[str, list[Sample]] = {target.name: [] for target in targets}
    for target in targets:
        scenario(target, min(seconds, WARM_UP_SECONDS))
    for _ in range(rounds):
        for target in targets:
            found, noise = quiet.sample(partial(scenario, target, seconds))
            samples[target.name].append(replace(found, noise=noise))
    return samples


def _show(scenario: str, samples: dict[str, list[Sample]]) -> None:
    table.show(f"Gateway: {scenario}", HEADER, [_row(name, samples) for name in samples])


def _row(name: str, samples: dict[str, list[Sample]]) -> list[str]:
    own = samples[name]
    rate, cpu = _median(own, "rate"), _median(own, "cpu_us")
    peers = [samples.get(peer, []) for peer in PEERS]
    return [
        name, table.middle([one.rate for one in own], 0),
        *(table.ratio(rate, _median(peer, "rate")) for peer in peers),
        f"{_median(own, 'p50_ms'):.2f}", f"{_median(own, 'p99_ms'):.2f}",
        f"{cpu:.1f}" if cpu else "–",
        *(table.ratio(cpu, _median(peer, "cpu_us")) if cpu else "–" for peer in peers),
        str(sum(one.errors for one in own)), f"{max(one.noise for one in own):.1f}",
    ]  # fmt: skip


def _median(samples: list[Sample], figure: str) -> float:
    """Zero for a proxy that was not measured."""
    return statistics.median(getattr(one, figure) for one in samples) if samples else 0.0
