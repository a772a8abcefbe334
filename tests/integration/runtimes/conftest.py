"""Fixtures: a process runtime, and a tiny IDE, which is an HTTP server that runs commands."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import secrets
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from codehub.domain.images import BUILT_IN, Image
from codehub.domain.observation import ContainerFact
from codehub.host.processes import processes_with_argument
from codehub.runtimes.base import WorkloadSpec
from codehub.runtimes.egress import DEFAULT_EGRESS, Egress
from codehub.runtimes.process.barrier_detection import find_barriers
from codehub.runtimes.process.runtime import ProcessRuntime
from codehub.runtimes.process.sandbox import IsolationBarriers
from codehub.runtimes.process.state_directory import StateDirectory
from tests.waiting import eventually

SERVER = r"""
import http.server, socketserver, subprocess, sys, os

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer(b"ready")
    def do_POST(self):
        script = self.rfile.read(int(self.headers["Content-Length"])).decode()
        done = subprocess.run(["/bin/bash", "-c", script], capture_output=True)
        self.answer(done.stdout + done.stderr)
    def answer(self, body):
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def address_string(self):
        return "-"

class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True

print("answer_of from the IDE", flush=True)
Server(sys.argv[1], Handler).serve_forever()
"""

STOP_GRACE = 2.0
"""Seconds. No test depends on whether an IDE ends in time or is killed afterwards."""
UIDS_OF_A_PROCESS = 200
"""Few enough that the users of the largest PID stay below `HELPER_UID_OFFSET`."""
_first_uid = 10_000_000 + os.getpid() * UIDS_OF_A_PROCESS
STRANGER = _first_uid
"""A user without privileges. Like all users here, no other test process uses it."""
DELEGATE = _first_uid + 1
"""A user to whom a control group is delegated."""
_uids = itertools.cycle(range(_first_uid + 2, _first_uid + UIDS_OF_A_PROCESS))
ALONE = f"alone-{secrets.token_hex(4)}"
"""A workspace that no other test process has. Without a readable state, the runtime ends every
process on this machine that names the workspace."""


def script_image(script: str, *arguments: str) -> Image:
    """An image that runs a Python script; `arguments` may hold placeholders."""
    command = ("/usr/bin/python3", "-c", script.replace("{", "{{").replace("}", "}}"), *arguments)
    return replace(BUILT_IN[0], name="tiny", process=command, ready_path="/", pids=200)


TINY = script_image(SERVER, "{socket}")
UNCONFINED = replace(TINY, seccomp="unconfined")


@dataclass
class RuntimeFixture:
    """A data directory with a runtime and homes."""

    data_dir: Path
    runtime: ProcessRuntime

    def another_runtime(
        self, egress: Egress = DEFAULT_EGRESS, *, stop_grace: float = STOP_GRACE
    ) -> ProcessRuntime:
        root, tools = self.data_dir / "runtime", self.data_dir / "tools"
        return ProcessRuntime(root, tools, egress=egress, stop_grace=stop_grace)

    def directory(self, workspace_id: str) -> StateDirectory:
        return StateDirectory(self.data_dir / "runtime" / workspace_id)

    def spec(self, workspace_id: str, image: Image = TINY, op_id: str = "op-1") -> WorkloadSpec:
        home = self.data_dir / "volumes" / workspace_id / "home"
        uid = next(_uids)
        if not home.exists():
            home.mkdir(parents=True)
            os.chown(home, uid, uid)
            home.chmod(0o700)
        return WorkloadSpec(workspace_id, image, home, op_id, uid)

    async def started(self, workspace_id: str, image: Image = TINY) -> WorkloadSpec:
        spec = self.spec(workspace_id, image)
        await self.runtime.start(spec)
        await self.until(workspace_id, lambda fact: fact.ready)
        return spec

    async def until(self, workspace_id: str, holds: Callable[[ContainerFact], bool]) -> ContainerFact:
        what = f"{workspace_id} to change"
        return await eventually(lambda: self.runtime.status(workspace_id), what, holds)

    async def inside(self, workspace_id: str, script: str) -> str:
        """Run a script inside the container and return its output."""
        upstream = await self.runtime.upstream(workspace_id)
        assert upstream is not None
        return await post(upstream.removeprefix("unix:"), script)


async def post(socket: str, script: str) -> str:
    reader, writer = await asyncio.open_unix_connection(socket)
    body = script.encode()
    writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    answer = await reader.read()
    writer.close()
    return answer.partition(b"\r\n\r\n")[2].decode()


_barriers: dict[str, IsolationBarriers] = {}


async def find_barriers_once() -> IsolationBarriers:
    """Probe the barriers once for each PATH: they do not change from test to test."""
    path = os.environ["PATH"]
    if path not in _barriers:
        _barriers[path] = await find_barriers()
    return _barriers[path]


@pytest.fixture
async def fixture(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RuntimeFixture]:
    if os.geteuid() != 0:
        pytest.skip(
            "needs root: each workspace has a separate user. Run: sudo pytest tests/integration/runtimes"
        )
    if shutil.which("bwrap") is None:
        pytest.skip("needs bubblewrap: apt-get install bubblewrap")
    # Short, because a socket's path is limited; not in pytest's directory, which only root may
    # enter.
    data_dir = Path(tempfile.mkdtemp(prefix="ch-", dir="/tmp"))
    data_dir.chmod(0o711)
    monkeypatch.setattr("codehub.runtimes.process.runtime.find_barriers", find_barriers_once)
    runtime = ProcessRuntime(data_dir / "runtime", data_dir / "tools", stop_grace=STOP_GRACE)
    made = RuntimeFixture(data_dir, runtime)
    yield made
    for path in (data_dir / "runtime").iterdir():
        for process in processes_with_argument(str(path)):
            process.send(signal.SIGKILL)
        await made.runtime.stop(path.name)
    shutil.rmtree(data_dir)


def only_programs(fixture: RuntimeFixture, monkeypatch: pytest.MonkeyPatch, *names: str) -> Path:
    """Set PATH to a directory with only these programs."""
    programs = fixture.data_dir / "programs"
    programs.mkdir(mode=0o755)
    for name in names:
        found = shutil.which(name)
        assert found is not None
        (programs / name).symlink_to(found)
    monkeypatch.setenv("PATH", str(programs))
    return programs


def tun_device(mode: str) -> str:
    """Return a shell command that gives /dev/net/tun this mode. Run it in a new mount namespace."""
    return f"/bin/mount -t tmpfs tmpfs /dev/net && /bin/mknod -m {mode} /dev/net/tun c 10 200"


@pytest.fixture
def own_network(fixture: RuntimeFixture) -> RuntimeFixture:
    if shutil.which("slirp4netns") is None:
        pytest.skip("needs slirp4netns: apt-get install slirp4netns")
    return fixture


def state_of(directory: StateDirectory) -> dict[str, object]:
    state = json.loads(directory.state_file.read_text())
    assert isinstance(state, dict)
    return state
