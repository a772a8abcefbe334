"""Processes of one run: upstreams, peers, and CodeHub's gateway."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.gateway import codehub_gateway
from bench.machine import cores
from codehub.embedded import server_processes
from codehub.embedded.server_account import own_account
from tests.services import Services
from tests.waiting import wait_for

FILES = Path(__file__).parent
LOAD_CORE, PROXY_CORE = cores()
HTTP, ECHO, PROXY, PROXY_API, NGINX = 9301, 9311, 9302, 9303, 9304
HTTP_PREFIX, WS_PREFIX = f"/w/{codehub_gateway.HTTP_WORKSPACE}", f"/w/{codehub_gateway.WS_WORKSPACE}"
SIZES = {"/small": 100, "/large": 100 * 1024}
STOP = [(signal.SIGTERM, 10.0), (signal.SIGKILL, 5.0)]


@dataclass(frozen=True)
class Target:
    """Address for requests, and the processes whose CPU time they cost."""

    name: str
    port: int
    ws_port: int = 0
    pids: list[int] = field(default_factory=list)
    cookie: str = ""

    @property
    def http(self) -> str:
        return f"http://127.0.0.1:{self.port}{HTTP_PREFIX}"

    @property
    def ws(self) -> str:
        return f"ws://127.0.0.1:{self.ws_port or self.port}{WS_PREFIX}/ws"


def pinned(core: int, *command: str | Path) -> list[str]:
    return ["taskset", "-c", str(core), *map(str, command)]


class Stack:
    """Upstreams and proxies, each as a child process."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._processes: list[subprocess.Popen[bytes]] = []

    def upstreams(self) -> Target:
        """Start the upstreams. Direct requests to them show the limit of the harness."""
        (self._directory / "large.bin").write_bytes(os.urandom(SIZES["/large"]))
        self._start("upstream", LOAD_CORE, "nginx", "-c", self._render("upstream.nginx.conf"))
        self._start("echo", LOAD_CORE, "node", FILES / "wsecho.mjs", str(ECHO))
        return self._checked(Target("direct", HTTP, ECHO))

    def nginx(self) -> Target:
        pid = self._start("nginx", PROXY_CORE, "nginx", "-c", self._render("proxy.nginx.conf"))
        return self._checked(Target("nginx", NGINX, pids=[pid]))

    def http_proxy(self, program: Path) -> Target:
        addresses = [
            "--ip",
            "127.0.0.1",
            "--port",
            str(PROXY),
            "--api-ip",
            "127.0.0.1",
            "--api-port",
            str(PROXY_API),
        ]
        token = {"CONFIGPROXY_AUTH_TOKEN": "bench", "PATH": os.environ["PATH"]}
        pid = self._start("http-proxy", PROXY_CORE, "node", program, *addresses, environment=token)
        wait_for(lambda: _status(f"http://127.0.0.1:{PROXY}/_chp_healthz"), "configurable-http-proxy")
        _add_route(HTTP_PREFIX, HTTP)
        _add_route(WS_PREFIX, ECHO)
        return self._checked(Target("configurable-http-proxy", PROXY, pids=[pid]))

    def codehub(self, services: Services) -> Target:
        upstreams = {
            codehub_gateway.HTTP_WORKSPACE: f"tcp:127.0.0.1:{HTTP}",
            codehub_gateway.WS_WORKSPACE: f"tcp:127.0.0.1:{ECHO}",
        }
        environment, cookie = codehub_gateway.prepare(services, upstreams)
        command = (sys.executable, "-m", "codehub", "serve", "gateway")
        pid = self._start("gateway", PROXY_CORE, *command, environment=environment)
        return self._checked(Target("CodeHub", codehub_gateway.PORT, pids=[pid], cookie=cookie))

    def stop(self) -> None:
        for child in reversed(self._processes):
            server_processes.end_child(child, STOP)

    def _start(
        self, name: str, core: int, *command: str | Path, environment: Mapping[str, str] | None = None
    ) -> int:
        child = server_processes.spawn(
            pinned(core, *command), log=self._directory / f"{name}.log", death_signal=signal.SIGTERM,
            account=own_account(), environment=environment or {"PATH": os.environ["PATH"]},
        )  # fmt: skip
        self._processes.append(child)
        return child.pid

    def _render(self, name: str) -> Path:
        text = (FILES / name).read_text().replace("@DIR@", str(self._directory)).replace("@SMALL@", "x" * 100)
        path = self._directory / name
        path.write_text(text)
        return path

    def _checked(self, target: Target) -> Target:
        """Return the target once its responses are right: a fast error would give good figures."""
        wait_for(lambda: _status(target.http + "/small", target.cookie), f"a response of {target.name}")
        for path, size in SIZES.items():
            response = _get(target.http + path, target.cookie)
            assert response == (200, size), f"{target.name} responds to {path} with {response}"
        assert all(child.poll() is None for child in self._processes), self._logs()
        return target

    def _logs(self) -> str:
        return "\n".join(
            f"== {log.name}\n{server_processes.tail(log)}" for log in self._directory.glob("*.log")
        )


@contextmanager
def running_stack(directory: Path) -> Iterator[Stack]:
    stack = Stack(directory)
    try:
        yield stack
    finally:
        stack.stop()


def _add_route(path: str, port: int) -> None:
    request = urllib.request.Request(
        f"http://127.0.0.1:{PROXY_API}/api/routes{path}", method="POST",
        data=json.dumps({"target": f"http://127.0.0.1:{port}"}).encode(),
        headers={"Authorization": "token bench"},
    )  # fmt: skip
    with urllib.request.urlopen(request, timeout=5):
        pass


def _get(url: str, cookie: str = "") -> tuple[int, int]:
    with urllib.request.urlopen(
        urllib.request.Request(url, headers={"Cookie": cookie}), timeout=5
    ) as response:
        return response.status, len(response.read())


def _status(url: str, cookie: str = "") -> int:
    """Return the status of a response, or 0 if there is none."""
    try:
        return _get(url, cookie)[0]
    except OSError:
        return 0
