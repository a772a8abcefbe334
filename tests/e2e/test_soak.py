"""All floods at once, for ten minutes, beside ordinary users in real Chromium.

The floods come from a stranger, from a user and from that user's workspaces. Other users see
nothing fail: no connection of VS Code closes, no call is rejected or fails, every edit is saved and
every sign-in succeeds. The test prints how long saves, calls of the API and requests to an IDE take
before and during the floods. It does not bound them: docs/threat-model.md, "Not stopped".

The system serves plain http, as on every loopback address. The floods of TLS have tests of their
own (tests/integration/gateway/test_floods.py and test_tls_records.py).
"""

import base64
import contextlib
import inspect
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil
import pytest
from playwright.sync_api import Browser, BrowserContext, Response, WebSocket, expect

from tests.e2e import hostile_workspace
from tests.e2e.conftest import Hub, new_context, running_hub
from tests.e2e.probe import Request
from tests.e2e.vscode import open_file, wait_until_ide_ready
from tests.integration.gateway.flooding import BY_PATH, Flood
from tests.integration.gateway.harness import NAVIGATE
from tests.services import System, descendants
from tests.waiting import wait_for

USERS = int(os.environ.get("CODEHUB_SOAK_USERS", "10"))
SECONDS = float(os.environ.get("CODEHUB_SOAK_SECONDS", "600"))
QUIET_ROUNDS = max(3, 30 // USERS)
PASSWORD = "a password for the soak"
IMAGES = Path(__file__).parents[2] / "images" / "images.toml"
CONNECTIONS_PER_ADDRESS = 200
SYSTEM = {
    "LIMITS_MAX_RUNNING_GLOBAL": str(USERS + 2),
    "TTL_STANDBY_SECONDS": "7200",
    "DISK_RESERVE_BYTES": str(64 << 20),
    "GATEWAY_MAX_CONNECTIONS_PER_ADDRESS": str(CONNECTIONS_PER_ADDRESS),
}
UNPACK = "import base64, sys; exec(base64.b64decode(sys.argv[2]))"
"""Encodes the program, because braces in an image's command are placeholders."""
CONNECTIONS = 6
IDLE_CONNECTIONS = 5 * CONNECTIONS_PER_ADDRESS
"""More than loopback's three shares."""
UNREAD_CONNECTIONS = 120
UNFINISHED_SIGN_INS = 400
STOPPED = 20
DESCRIPTION = "\N{SNOWMAN}" * 1000
"""Workspaces with long descriptions, so that a list of them is no small answer."""
MAX_GROWTH = 256 << 20
"""Bytes that all processes together may keep: allocators do not return everything."""
KEPT_CONNECTIONS = 40
"""Connections that the pools of the API (20) and of two gateway workers (10 each) may keep."""
UPGRADE = (
    "Connection: Upgrade\r\nUpgrade: websocket\r\n"
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
)
CHUNKED = "Transfer-Encoding: chunked\r\n"


@dataclass(frozen=True)
class Site:
    """A host with the cookies of a browser that has been there."""

    host: str
    cookies: str

    @classmethod
    def of(cls, context: BrowserContext, url: str) -> "Site":
        cookies = context.cookies(url)
        return cls(urlsplit(url).netloc, "; ".join(f"{each['name']}={each['value']}" for each in cookies))

    def head(self, path: str, fields: str = "", method: str = "GET") -> str:
        origin = f"Origin: http://{self.host}\r\n"
        cookies = f"Cookie: {self.cookies}\r\n" if self.cookies else ""
        return f"{method} {path} HTTP/1.1\r\nHost: {self.host}\r\n{cookies}{origin}{fields}\r\n"

    def probe(self, path: str, *, reconnects: bool) -> Request:
        return Request(self.host, path, self.cookies, reconnects)


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
        wait_for(lambda: self._file.read_text() == wanted, f"{self.name}'s file to be saved", every=0.01)
        took = time.monotonic() - began
        self._dashboard.goto(self._hub.system.base_url)
        card = self._dashboard.get_by_test_id("workspace-card")
        expect(card).to_have_attribute("data-phase", "RUNNING")
        return took

    def probes(self) -> dict[str, Request]:
        """Return requests to the API and to the IDE."""
        platform = Site.of(self._context, self._hub.system.base_url)
        ide = Site.of(self._context, self._ide.url)
        return {
            "calls of the API": platform.probe("/api/v1/workspaces", reconnects=False),
            "requests to the IDE": ide.probe("/healthz", reconnects=True),
        }

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
    responses = hostile_workspace.pack(BY_PATH)
    images.write_text(
        IMAGES.read_text()
        + '\n[[image]]\nname = "hostile"\ncpus = 0.5\nmemory = "256m"\n'
        + f'process = ["/usr/bin/python3", "-c", "{UNPACK}", "{{socket}}", "{program}", "{responses}"]\n'
        + 'ready_path = "/"\n'
    )
    with running_hub(browser, IMAGES_FILE=str(images), **SYSTEM) as made:
        for name in ("mallory", *(f"user-{number}" for number in range(USERS))):
            answer = made.client.post("/api/v1/users", json={"username": name, "password": PASSWORD})
            assert answer.status_code == 201, answer.text
        yield made


class Helper:
    """A module in a process of its own. It works until its standard input closes, and then reports."""

    def __init__(self, module: str, *arguments: str, niceness: int = 0) -> None:
        self._name = f"{module} {' '.join(arguments)}"[:200]
        self._niceness = niceness
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def __enter__(self) -> "Helper":
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n", f"{self._name} did not start"
        # Not earlier: beside the other floods, it would take long to start.
        os.setpriority(os.PRIO_PROCESS, self._process.pid, self._niceness)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def finish(self) -> Any:
        """Return its report."""
        assert self._process.poll() is None, f"{self._name} ended early"
        return json.loads(self._process.communicate()[0])


def start_hostile_workspaces(client: httpx.Client) -> tuple[list[str], str]:
    """Run as many workspaces as a user may. Return them, and one of many that do not run."""

    def create(name: str, desired: str) -> str:
        body = {"name": name, "image_ref": "hostile", "desired_state": desired, "description": DESCRIPTION}
        return str(client.post("/api/v1/workspaces", json=body).raise_for_status().json()["id"])

    def phases() -> dict[str, str]:
        items = client.get("/api/v1/workspaces").raise_for_status().json()["items"]
        return {item["id"]: item["phase"] for item in items}

    running = [create(name, "RUNNING") for name in ("one", "two")]
    stopped = [create(f"stopped-{number}", "STANDBY") for number in range(STOPPED)]
    wanted = dict.fromkeys(running, "RUNNING") | dict.fromkeys(stopped, "STANDBY")
    wait_for(lambda: phases() == wanted, "the hostile workspaces", every=0.5)
    return running, stopped[0]


def visit_hostile(hub: Hub, browser: Browser, workspace_ids: list[str]) -> list[Site]:
    """Sign in as the hostile user, and open the workspaces. The first site is the platform."""
    base_url = hub.system.base_url
    context = new_context(browser)
    entry = {"username": "mallory", "password": PASSWORD}
    assert context.request.post(f"{base_url}/api/v1/login", data=entry).ok
    sites = [Site.of(context, base_url)]
    for workspace_id in workspace_ids:
        page = context.new_page()
        page.goto(f"{base_url}/w/{workspace_id}/")
        expect(page).to_have_title("hostile")
        sites.append(Site.of(context, page.url))
    context.close()
    return sites


def sign_ins() -> str:
    """Return sign-ins of different users, for one connection."""
    bodies = [json.dumps({"username": f"nobody-{number}", "password": "a guess"}) for number in range(200)]
    return "".join(
        f"POST /api/v1/login HTTP/1.1\r\nHost: {{host}}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n{body}"
        for body in bodies
    )


def make_floods(port: int, platform: Site, one: Site, two: Site, stopped: str) -> dict[str, Flood]:
    """Return the floods by name, each from another address."""
    stranger, visitor = Site(platform.host, ""), Site(one.host, "")
    ids = [f"01hzy{number:021d}" for number in range(200)]
    unfinished = "Content-Type: application/json\r\nContent-Length: 16000\r\n"
    search = f"/api/v1/workspaces?q={'%25_' * 12}%20{'%25_' * 12}"
    sent: dict[str, tuple[str, str, int]] = {
        # These open many connections, and come first, because the others make that slow.
        "idle connections": ("", "", IDLE_CONNECTIONS),
        "unfinished sign-ins": (
            stranger.head("/api/v1/login", unfinished, "POST"),
            "",
            UNFINISHED_SIGN_INS,
        ),
        "unread events": (platform.head("/api/v1/events"), "", UNREAD_CONNECTIONS),
        "unread responses": (two.head("/large-chunks"), "", UNREAD_CONNECTIONS),
        "requests": ("", "requests", CONNECTIONS),
        "requests with long lists": ("", "long lists", CONNECTIONS),
        "requests with many fields": (stranger.head("/", "te:\r\n" * 120), "first", CONNECTIONS),
        "requests with too many fields": (stranger.head("/", "te:\r\n" * 3000), "", CONNECTIONS),
        "requests with many cookies": (
            stranger.head(f"/w/{stopped}/", f"{NAVIGATE}Cookie: {';' * 12_000}session\r\n"),
            "first",
            CONNECTIONS,
        ),
        "sign-ins": (sign_ins().replace("{host}", platform.host), "first", 100),
        "invented sessions": (
            "".join(Site(platform.host, f"session={name}").head("/api/v1/workspaces") for name in ids),
            "first",
            CONNECTIONS,
        ),
        "invented tickets": (
            visitor.head(f"/.codehub/enter?ticket={'x' * 43}", NAVIGATE),
            "first",
            CONNECTIONS,
        ),
        "random workspaces": (
            "".join(platform.head(f"/w/{name}/", NAVIGATE) for name in ids),
            "first",
            CONNECTIONS,
        ),
        "reloads at the limit": (platform.head(f"/w/{stopped}/", NAVIGATE), "first", CONNECTIONS),
        "searches": (platform.head(search), "first", 8),
        "unread lists": (platform.head("/api/v1/workspaces"), "first", UNREAD_CONNECTIONS),
        "chunks of requests": (one.head("/", CHUNKED, "POST"), "tiny chunks", CONNECTIONS),
        "frames of clients": (one.head("/frames", UPGRADE), "empty frames", CONNECTIONS),
        "long response heads": (two.head("/long-heads"), "first", CONNECTIONS),
        "responses with many fields": (two.head("/many-fields"), "first", CONNECTIONS),
        "interim responses": (two.head("/interim-heads"), "first", CONNECTIONS),
        "chunks of responses": (two.head("/tiny-chunks"), "", CONNECTIONS),
        "frames of a workspace": (two.head("/empty-frames", UPGRADE), "", CONNECTIONS),
    }
    return {
        name: Flood(
            port, count, first, again, source=f"127.0.0.{number}", reads=not name.startswith("unread ")
        )
        for number, (name, (first, again, count)) in enumerate(sent.items(), 2)
    }


@dataclass(frozen=True)
class Usage:
    """Memory and file descriptors of CodeHub's processes, by name, and PostgreSQL's processes."""

    memory: dict[str, int]
    descriptors: dict[str, int]
    backends: int

    @classmethod
    def of(cls, system: System) -> "Usage":
        assert system.process is not None
        pids = system.pids()
        # The coordinator's children are the jobs and keepers of workspaces.
        processes = {"up": [system.process.pid], "coordinator": [pids["coordinator"]]}
        processes |= {name: [pids[name], *descendants(pids[name])] for name in ("api", "gateway")}
        return cls(
            {
                name: sum(psutil.Process(pid).memory_info().rss for pid in of_part)
                for name, of_part in processes.items()
            },
            {
                name: sum(psutil.Process(pid).num_fds() for pid in of_part)
                for name, of_part in processes.items()
            },
            len(descendants(pids["postgres"])),
        )

    def __str__(self) -> str:
        memory = {name: f"{value >> 20} MiB" for name, value in self.memory.items()}
        return f"memory {memory}, descriptors {self.descriptors}, {self.backends} processes of PostgreSQL"


def slowest_hundredth(seconds: Sequence[float]) -> float:
    return sorted(seconds)[-(-len(seconds) * 99 // 100) - 1]


def print_times(what: str, quiet: Sequence[float], flooded: Sequence[float]) -> None:
    before, during = (
        f"{1000 * median(seconds):.1f} (slowest hundredth {1000 * slowest_hundredth(seconds):.1f}) ms"
        for seconds in (quiet, flooded)
    )
    print(f"{what}: {before} -> {during}, {len(quiet)} and {len(flooded)} times")


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_nothing_fails_for_users_during_ten_minutes_of_floods(hub: Hub, browser: Browser) -> None:
    system = hub.system
    users = [User(hub, browser, f"user-{number}") for number in range(USERS)]
    for user in users:
        user.open()
    for user in users:
        user.start_recording()
    probes = json.dumps({name: asdict(request) for name, request in users[0].probes().items()})

    def work(is_over: Callable[[int], bool]) -> dict[str, list[float]]:
        """Have all users work in rounds. Return how long their saves and the probes took."""
        saves: list[float] = []
        with Helper("tests.e2e.probe", str(system.port), probes) as probe:
            while not is_over(len(saves)):
                for user in users:
                    saves.append(user.work())
                    assert user.problems == []
                users[len(saves) // USERS % USERS].sign_in_elsewhere()
            return {"saves": saves, **probe.finish()}

    work(lambda saves: saves >= USERS)  # everything has been used once
    quiet = work(lambda saves: saves >= QUIET_ROUNDS * USERS)
    before, parts = Usage.of(system), all_parts(system)
    print(f"before: {before}")

    with contextlib.closing(system.client("mallory", PASSWORD)) as mallory, contextlib.ExitStack() as stack:
        running, stopped = start_hostile_workspaces(mallory)
        platform, one, two = visit_hostile(hub, browser, running)
        floods = make_floods(system.port, platform, one, two, stopped)
        helpers = {
            name: stack.enter_context(
                Helper("tests.integration.gateway.flooding", "flood", json.dumps(asdict(flood)), niceness=19)
            )
            for name, flood in floods.items()
        }
        until = time.monotonic() + SECONDS
        flooded = work(lambda _: time.monotonic() >= until)
        print(f"during: {Usage.of(system)}")
        reports = {name: helper.finish() for name, helper in helpers.items()}
    print(f"floods: {reports}")
    for what in quiet:
        print_times(what, quiet[what], flooded[what])

    for user in users:
        user.work()
        assert user.problems == []
    assert all_parts(system) == parts, "a part or a worker was started again"
    assert reports["idle connections"]["refused"] > 0
    wait_until_back(system, before)


def all_parts(system: System) -> dict[str, list[int]]:
    pids = system.pids()
    workers = {name: descendants(pids[name]) for name in ("api", "gateway")}
    return {name: [pid, *workers.get(name, [])] for name, pid in pids.items()}


def wait_until_back(system: System, before: Usage) -> None:
    def are_closed() -> bool:
        now = Usage.of(system).descriptors
        return all(now[name] <= before.descriptors[name] + USERS + KEPT_CONNECTIONS for name in now)

    try:
        wait_for(are_closed, "the descriptors to be closed", every=1)
        wait_for(
            lambda: Usage.of(system).backends <= before.backends + KEPT_CONNECTIONS,
            "PostgreSQL's processes to end",
            every=1,
        )
        wait_for(
            lambda: sum(Usage.of(system).memory.values()) <= sum(before.memory.values()) + MAX_GROWTH,
            "the memory to be freed",
            every=1,
        )
    finally:
        print(f"after: {Usage.of(system)}")
