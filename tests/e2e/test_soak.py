"""All floods at once, for ten minutes, beside ordinary users in real Chromium.

The floods come from a stranger, from a user and from that user's workspaces. Other users notice
nothing: no connection of VS Code closes, no call is rejected or fails, every edit is saved, every
sign-in succeeds.
"""

import base64
import contextlib
import inspect
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psutil
import pytest
from playwright.sync_api import Browser, Page, Response, WebSocket, expect

from tests.e2e import hostile_workspace
from tests.e2e.conftest import Hub, new_context, running_hub
from tests.e2e.vscode import open_file, wait_until_ide_ready
from tests.integration.gateway.flooding import Flood
from tests.services import System, descendants
from tests.waiting import wait_for

USERS = 10
SECONDS = 600.0
PASSWORD = "a password for the soak"
IMAGES = Path(__file__).parents[2] / "images" / "images.toml"
SYSTEM = {
    "LIMITS_MAX_RUNNING_GLOBAL": str(USERS + 2),
    "TTL_STANDBY_SECONDS": "7200",
    "DISK_RESERVE_BYTES": str(64 << 20),
}
UNPACK = "import base64, sys; exec(base64.b64decode(sys.argv[2]))"
"""Encodes the program, because braces in an image's command are placeholders."""
CONNECTIONS = 6
IDLE_CONNECTIONS = 3000
MAX_GROWTH = 96 << 20
"""Bytes that all processes together may keep: allocators do not return everything."""
UPGRADE = (
    "Connection: Upgrade\r\nUpgrade: websocket\r\n"
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
)


class User:
    """A user with VS Code and the dashboard open, who records everything that goes wrong."""

    def __init__(self, hub: Hub, browser: Browser, name: str) -> None:
        self.name = name
        self.problems: list[str] = []
        self._hub = hub
        self._is_recording = False
        self._line = 0
        self._context = new_context(browser)
        entry = {"username": name, "password": PASSWORD}
        answer = self._context.request.post(f"{hub.system.base_url}/api/v1/login", data=entry)
        assert answer.ok, answer.text()
        created = self._context.request.post(f"{hub.system.base_url}/api/v1/workspaces", data={"name": name})
        assert created.ok, created.text()
        self._workspace_id = created.json()["id"]

    def open(self) -> None:
        system = self._hub.system
        answer = self._context.request.get
        url = f"{system.base_url}/api/v1/workspaces/{self._workspace_id}"
        wait_for(
            lambda: answer(url).json()["phase"] == "RUNNING", f"{self.name}'s workspace to run", every=0.2
        )
        self._file = self._hub.home(self._workspace_id) / "notes.txt"
        self._file.touch()
        self._hub.chown_to_home_owner(self._workspace_id)
        self._ide = self._context.new_page()
        self._ide.on("websocket", self._watch_socket)
        self._ide.goto(f"{system.base_url}/w/{self._workspace_id}/")
        wait_until_ide_ready(self._ide)
        open_file(self._ide, self._file.name)
        self._dashboard = self._context.new_page()
        for page in (self._ide, self._dashboard):
            page.on("response", self._watch_response)

    def start_recording(self) -> None:
        self._is_recording = True

    def work(self) -> float:
        """Write and save a line, then open the dashboard. Return how long the save took."""
        began = time.monotonic()
        self._line += 1
        self._ide.bring_to_front()
        self._ide.keyboard.type(f"{self._line}\n")
        self._ide.keyboard.press("Control+S")
        wanted = "".join(f"{number}\n" for number in range(1, self._line + 1))
        wait_for(lambda: self._file.read_text() == wanted, f"{self.name}'s file to be saved")
        took = time.monotonic() - began
        self._dashboard.goto(self._hub.system.base_url)
        card = self._dashboard.get_by_test_id("workspace-card")
        expect(card).to_have_attribute("data-phase", "RUNNING")
        return took

    def sign_in_elsewhere(self) -> None:
        with contextlib.closing(self._hub.system.client(self.name, PASSWORD)) as client:
            assert client.post("/api/v1/logout").status_code == 204

    def _watch_socket(self, socket: WebSocket) -> None:
        socket.on("close", lambda _: self._record(f"a connection of VS Code closed: {socket.url}"))

    def _watch_response(self, response: Response) -> None:
        if response.status == 429 or response.status >= 500:
            self._record(f"{response.status} for {response.url}")

    def _record(self, what: str) -> None:
        if self._is_recording:
            self.problems.append(what)


@pytest.fixture(scope="module")
def hub(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    images = tmp_path_factory.mktemp("images") / "images.toml"
    program = base64.b64encode(inspect.getsource(hostile_workspace).encode()).decode()
    images.write_text(
        IMAGES.read_text()
        + '\n[[image]]\nname = "hostile"\ncpus = 0.5\nmemory = "256m"\n'
        + f'process = ["/usr/bin/python3", "-c", "{UNPACK}", "{{socket}}", "{program}"]\nready_path = "/"\n'
    )
    with running_hub(browser, IMAGES_FILE=str(images), **SYSTEM) as made:
        for name in ("mallory", *(f"user-{number}" for number in range(USERS))):
            answer = made.client.post("/api/v1/users", json={"username": name, "password": PASSWORD})
            assert answer.status_code == 201, answer.text
        yield made


@contextlib.contextmanager
def running(module: str, *arguments: str) -> Iterator[None]:
    """Run a module of floods until the end of the block, at a low priority."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        preexec_fn=lambda: os.nice(19) and None,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"ready\n"
        yield
        assert process.poll() is None, "the flood ended early"
    finally:
        process.kill()
        process.communicate()


def start_hostile_workspaces(system: System, client: httpx.Client) -> list[str]:
    made = [
        client.post("/api/v1/workspaces", json={"name": name, "image_ref": "hostile"})
        for name in ("one", "two")
    ]
    ids = [answer.raise_for_status().json()["id"] for answer in made]

    def phase(workspace_id: str) -> str:
        return str(client.get(f"/api/v1/workspaces/{workspace_id}").json()["phase"])

    for workspace_id in ids:
        wait_for(lambda name=workspace_id: phase(name) == "RUNNING", "a hostile workspace to run")  # type: ignore[misc]
    return ids


def open_hostile(hub: Hub, browser: Browser, workspace_id: str) -> tuple[str, str]:
    """Open a hostile workspace in a browser. Return its host and the cookies that a flood needs."""
    context = new_context(browser)
    entry = {"username": "mallory", "password": PASSWORD}
    assert context.request.post(f"{hub.system.base_url}/api/v1/login", data=entry).ok
    page: Page = context.new_page()
    page.goto(f"{hub.system.base_url}/w/{workspace_id}/")
    expect(page).to_have_title("hostile")
    cookies = context.cookies(page.url)
    return urlsplit(page.url).netloc, "; ".join(f"{each['name']}={each['value']}" for each in cookies)


def floods(port: int, host: str, cookies: str) -> Iterator[Flood]:
    """Yield floods, each from another address."""

    def head(path: str, fields: str = "", method: str = "GET") -> str:
        origin = f"Origin: http://{host}\r\n"
        return f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nCookie: {cookies}\r\n{origin}{fields}\r\n"

    sent = [
        ("", "requests", CONNECTIONS),
        (head("/sink", "Transfer-Encoding: chunked\r\n", "POST"), "tiny chunks", CONNECTIONS),
        (head("/tiny-chunks"), "", CONNECTIONS),
        (head("/sink", UPGRADE), "empty frames", CONNECTIONS),
        (head("/empty-frames", UPGRADE), "", CONNECTIONS),
        ("", "", IDLE_CONNECTIONS),
    ]
    for number, (first, again, count) in enumerate(sent):
        yield Flood(port, count, first, again, source=f"127.0.0.{number + 2}")


class Usage:
    """Memory and file descriptors of the API and the gateway."""

    def __init__(self, system: System) -> None:
        self._pids = [
            pid
            for name, top in system.pids().items()
            if name in ("api", "gateway")
            for pid in (top, *descendants(top))
        ]

    def memory(self) -> int:
        return sum(psutil.Process(pid).memory_info().rss for pid in self._pids)

    def descriptors(self) -> int:
        return sum(psutil.Process(pid).num_fds() for pid in self._pids)


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_users_notice_nothing_during_ten_minutes_of_floods(hub: Hub, browser: Browser) -> None:
    system = hub.system
    users = [User(hub, browser, f"user-{number}") for number in range(USERS)]
    for user in users:
        user.open()
    for user in users:
        user.start_recording()
    quiet = [user.work() for user in users]
    usage = Usage(system)
    memory, descriptors = usage.memory(), usage.descriptors()

    with contextlib.closing(system.client("mallory", PASSWORD)) as mallory, contextlib.ExitStack() as stack:
        workspace_id, _ = start_hostile_workspaces(system, mallory)
        host, cookies = open_hostile(hub, browser, workspace_id)
        for flood in floods(system.port, host, cookies):
            options = json.dumps(asdict(flood))
            stack.enter_context(running("tests.integration.gateway.flooding", "flood", options))
        stack.enter_context(running("tests.e2e.api_floods", str(system.port), mallory.cookies["session"]))
        until, flooded = time.monotonic() + SECONDS, []
        while time.monotonic() < until:
            for user in users:
                flooded.append(user.work())
                assert user.problems == []
            users[len(flooded) // USERS % USERS].sign_in_elsewhere()
    print(
        f"saved after a median of {statistics.median(quiet):.2f} s, during the floods "
        f"{statistics.median(flooded):.2f} s ({len(flooded)} times)"
    )
    for user in users:
        user.work()
        assert user.problems == []
    wait_for(lambda: usage.descriptors() <= descriptors + USERS, "the descriptors to be closed")
    wait_for(lambda: usage.memory() <= memory + MAX_GROWTH, "the memory to be freed", every=1)
