"""From the wish for a workspace to RUNNING, beside the bare start of the same command."""

import json
import os
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from bench import table
from bench.machine import Quiet
from codehub.domain.images import BUILT_IN, expand_command
from codehub.embedded.process import end
from tests.services import System, processes_of, wait_for

IMAGE = BUILT_IN[0]
BY_HAND, CREATE = f"{IMAGE.name}, started by hand", "create to RUNNING"
POLL_SECONDS = 0.02
LIMIT_SECONDS = 120.0
STOP = [(signal.SIGTERM, 10.0), (signal.SIGKILL, 5.0)]


def measure(directory: Path, quiet: Quiet, rounds: int) -> None:
    system = System()
    samples: dict[str, list[tuple[float, float]]] = {BY_HAND: [], CREATE: []}
    quiet.also_own = partial(processes_of, system.data_dir)  # workspaces are nobody's children
    try:
        with closing(system.start().client()) as client:
            attempts = {BY_HAND: lambda: _bare(directory), CREATE: lambda: _create(client)}
            for _ in range(rounds + 1):
                for name, attempt in attempts.items():
                    samples[name].append(quiet.sample(attempt))
    finally:
        system.close()
    _show({name: own[1:] for name, own in samples.items()})  # the first round fills the page cache


def _bare(directory: Path) -> float:
    """Seconds until the command, started by hand in a new home, answers on its socket."""
    home = Path(tempfile.mkdtemp(dir=directory))
    socket = home.with_suffix(".sock")
    assert IMAGE.process is not None
    command = expand_command(IMAGE.process, socket=str(socket), home=str(home), workspace_id="bare")
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8", "SHELL": "/bin/bash"}
    began = time.perf_counter()
    with (
        _running(command, environment, home),
        httpx.Client(transport=httpx.HTTPTransport(uds=str(socket))) as client,
    ):
        wait_for(lambda: _is_ready(client), "the IDE to answer", LIMIT_SECONDS, POLL_SECONDS)
        return time.perf_counter() - began


@contextmanager
def _running(command: tuple[str, ...], environment: dict[str, str], home: Path) -> Iterator[None]:
    child = subprocess.Popen(
        command, env=environment, cwd=home, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield
    finally:
        end(child, STOP)


def _is_ready(client: httpx.Client) -> bool:
    try:
        return client.get(f"http://ide{IMAGE.ready_path}").is_success
    except httpx.TransportError:
        return False


def _create(client: httpx.Client) -> float:
    """Seconds from the request until an event says RUNNING; the workspace is deleted afterwards."""
    with client.stream("GET", "/api/v1/events", timeout=LIMIT_SECONDS) as stream:
        events = _workspaces(stream)
        next(events)
        began = time.perf_counter()
        made = client.post("/api/v1/workspaces", json={"name": "bench"}).raise_for_status().json()
        while not any(item["id"] == made["id"] and item["phase"] == "RUNNING" for item in next(events)):
            assert time.perf_counter() - began < LIMIT_SECONDS, "the workspace does not come up"
        took = time.perf_counter() - began
    _delete(client, made["id"])
    return took


def _workspaces(stream: httpx.Response) -> Iterator[list[dict[str, Any]]]:
    """The workspaces that each event speaks of."""
    for line in stream.iter_lines():
        if line.startswith("data:"):
            told = json.loads(line.removeprefix("data:"))
            yield told.get("items", [told] if "phase" in told else [])


def _delete(client: httpx.Client, workspace_id: str) -> None:
    def is_deleted() -> bool:
        trash = client.get("/api/v1/workspaces", params={"trash": True}).raise_for_status().json()
        return any(item["id"] == workspace_id and item["phase"] == "DELETED" for item in trash["items"])

    wait_for(
        lambda: client.delete(f"/api/v1/workspaces/{workspace_id}").status_code == 204, "the delete", 30, 0.2
    )
    wait_for(is_deleted, "the workspace to be gone", LIMIT_SECONDS, 0.2)


def _show(samples: dict[str, list[tuple[float, float]]]) -> None:
    medians = {name: statistics.median(seconds for seconds, _ in own) for name, own in samples.items()}
    rows = [
        [
            name,
            table.middle([seconds for seconds, _ in own]),
            table.ratio(medians[name], medians[BY_HAND]),
            f"{max(noise for _, noise in own):.1f}",
        ]
        for name, own in samples.items()
    ]
    table.show("Start of a workspace", ("what", "seconds (min–max)", "× by hand", "noise %"), rows)
