"""Commands over HTTP with a token: through the gateway and the access part of a whole `codehub up`."""

import asyncio
import json
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from bench import table, tools
from bench.commands.compare import Peers, compare_output, compare_true
from bench.commands.workspaces import engine, peers_of_container, peers_of_process, require_sandbox
from tests.docker.engine import TINY
from tests.docker.system import DockerSystem
from tests.integration.coordinator.conftest import IDE
from tests.services import System
from tests.waiting import PATIENCE, wait_for

FIRST_OUTPUT_SECONDS = 1.0
IMAGE = f"""
[[image]]
name = "bench"
docker = "{TINY}"
process = {json.dumps(["/usr/bin/python3", "-c", IDE, "{socket}"])}
ready_path = "/healthz"
memory = "1g"
pids = 1024
"""
"""Its IDE is a small web server, so that the start of an IDE is no part of the figures."""
PROCESS = "the process runtime, over HTTP"
DOCKER = "Docker, over HTTP"
WHOLE = "in all"


@dataclass(frozen=True)
class HttpWorkspace:
    """A running workspace, reached with a token."""

    api: httpx.Client
    id: str

    @property
    def url(self) -> str:
        return f"/api/v1/workspaces/{self.id}"

    @classmethod
    def create(cls, api: httpx.Client) -> "HttpWorkspace":
        made = api.post("/api/v1/workspaces", json={"name": "bench"}).raise_for_status().json()
        return cls(api, made["id"])

    def get(self, path: str = "") -> dict[str, Any]:
        found: dict[str, Any] = self.api.get(f"{self.url}{path}").raise_for_status().json()
        return found

    def start(self, command: list[str], **fields: object) -> str:
        body = {"command": command, "stdin": False, **fields}
        started = self.api.post(f"{self.url}/execs", json=body).raise_for_status().json()
        return f"/execs/{started['id']}"

    def run(self, command: list[str], **fields: object) -> tuple[bytes, dict[str, Any]]:
        """Run a command to its end. Return its output, and what is known of it then."""
        path = self.start(command, **fields)
        output = self.api.get(f"{self.url}{path}/output", params={"follow": True}).raise_for_status()
        return output.content, self.get(path)

    def stream(self, command: list[str]) -> tuple[int, dict[str, Any]]:
        """Run a command to its end. Return how many bytes a reader got, and what is known of it then.

        The reader is curl, since a Python client would be slower than what is measured.
        """
        path = self.start(command)
        url = self.api.base_url.join(f"{self.url}{path}/output?follow=true")
        authorization = f"Authorization: {self.api.headers['Authorization']}\n"
        curl = ["curl", "--silent", "--fail", "--header", "@-", "--output", "/dev/null"]
        done = subprocess.run(
            [*curl, "--write-out", "%{size_download}", str(url)],
            input=authorization, check=True, text=True, stdout=subprocess.PIPE,
        )  # fmt: skip
        return int(done.stdout), self.get(path)

    def forget(self, exec_id: str) -> None:
        self.api.delete(f"{self.url}/execs/{exec_id}").raise_for_status()

    def delete(self) -> None:
        query = {"without_archive": True, "confirm": "bench"}
        wait_for(lambda: self.api.delete(self.url, params=query).is_success, "the workspace to be deleted")


def measure(directory: Path, rounds: int, size: int) -> None:
    images = directory / "images.toml"
    images.write_text(IMAGE)
    # A command writes faster than any client reads. Here all of it is kept, so the reader gets every byte.
    settings = {"APPS_DOMAIN": "", "IMAGES_FILE": str(images), "EXEC_OUTPUT_BYTES": str(2 * size)}
    require_sandbox()
    tools.require("curl")
    system = System(settings)
    runtimes = system.data_dir / "runtime"
    with _started(system) as api:
        _measure(PROCESS, api, lambda workspace_id: peers_of_process(runtimes, workspace_id), rounds, size)
    with engine() as own, _started(DockerSystem(settings | {"DOCKER_HOST": own.url})) as api:
        _measure(DOCKER, api, lambda workspace_id: peers_of_container(own, workspace_id), rounds, size)


@contextmanager
def _started(system: System) -> Iterator[httpx.Client]:
    """Start a system, and yield a client with a token."""
    try:
        with closing(system.start().client()) as owner:
            body = {"name": "bench", "scopes": ["read", "manage", "use"]}
            token = owner.post("/api/v1/tokens", json=body).raise_for_status().json()["token"]
        headers = {"Authorization": f"Bearer {token}"}
        with httpx.Client(base_url=system.base_url, headers=headers, timeout=PATIENCE) as api:
            yield api
    finally:
        system.close()


def _measure(where: str, api: httpx.Client, peers_of: Callable[[str], Peers], rounds: int, size: int) -> None:
    workspace = HttpWorkspace.create(api)
    workspace.run(["true"], wake=True)
    peers = peers_of(workspace.id)
    asyncio.run(compare_true(where, peers, lambda: asyncio.to_thread(_run_true, workspace), rounds * 10))
    read_all = partial(asyncio.to_thread, _read_all, workspace)
    asyncio.run(compare_output(where, peers, read_all, rounds, size))
    workspace.delete()
    _show_first_output(where, api, rounds * 3)


def _run_true(workspace: HttpWorkspace) -> None:
    _, found = workspace.run(["true"])
    assert found["exit_code"] == 0, found


def _read_all(workspace: HttpWorkspace, command: list[str], size: int) -> int:
    received, found = workspace.stream(command)
    assert (found["exit_code"], found["dropped_bytes"], received) == (0, 0, size), found
    workspace.forget(found["id"])
    return received


def _show_first_output(where: str, api: httpx.Client, rounds: int) -> None:
    """Show how long a program waits from the creation of a workspace to the output of a command."""
    samples = [_until_first_output(api) for _ in range(rounds + 1)][1:]  # the first one fills caches
    rows = [
        [step, table.median_and_range([sample[step] * 1000 for sample in samples], 0)] for step in samples[0]
    ]
    title = f"From creating a workspace to the output of its first command on {where}, {rounds} times"
    table.print_table(title, ("step", "ms (min–max)"), rows)
    seconds = statistics.median(sample[WHOLE] for sample in samples)
    if where == PROCESS:
        bound = f"first output on {where} at most {FIRST_OUTPUT_SECONDS:g} s"
        table.print_bound(bound, f"{seconds:.2f}", seconds <= FIRST_OUTPUT_SECONDS)


def _until_first_output(api: httpx.Client) -> dict[str, float]:
    began = time.time()
    workspace = HttpWorkspace.create(api)
    created = time.time()
    output, found = workspace.run(["echo", "hello"], wake=True)
    ended = time.time()
    assert (output, found["exit_code"]) == (b"hello\n", 0), found
    running = datetime.fromisoformat(workspace.get()["phase_changed_at"]).timestamp()
    workspace.delete()
    return {
        "the call that creates it": created - began,
        "PENDING to RUNNING": running - created,
        "the command, with its output and exit code": ended - running,
        WHOLE: ended - began,
    }
