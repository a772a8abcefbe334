"""A whole system with real code-server, and a real Chromium in front of it."""

import contextlib
import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from codehub.settings import default_tools_dir
from tests.services import TOOLS_DIR, System, wait_for

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
ADMIN_PASSWORD = "a password for the story"
SCREENSHOTS = Path(os.environ.get("CODEHUB_SCREENSHOTS", "test-results/screenshots"))
SYSTEM = {
    "ADMIN_PASSWORD": ADMIN_PASSWORD,
    "COORDINATOR_IDLE_INTERVAL": "2",
    "COORDINATOR_LEADER_RETRY_INTERVAL": "0.2",
    "DISK_RESERVE_BYTES": "0",
    "GATEWAY_WORKERS": "2",
}


@pytest.fixture(scope="session", autouse=True)
def requirements() -> None:
    """What these tests need, and how to get it."""
    if CHROMIUM is None:
        pytest.skip("Chromium is missing: apt-get install chromium")
    if not (TOOLS_DIR / "bin" / "code-server").exists():
        pytest.skip(f"code-server is missing below {default_tools_dir()}: codehub ide install")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Not for longer: while it is open, no other event loop can run in this thread."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM,
            args=["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking"],
        )
        yield browser
        browser.close()


@pytest.fixture
def system(make_system: Callable[..., System]) -> System:
    return make_system(**SYSTEM).start()


@pytest.fixture(scope="session")
def screenshots() -> Path:
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    return SCREENSHOTS


@pytest.fixture
def until() -> Callable[[Callable[[], object], str], None]:
    """Waits for a condition outside the browser."""

    def wait(condition: Callable[[], object], what: str) -> None:
        wait_for(condition, what, 150)

    return wait


@dataclass
class Hub:
    """A whole system, and somebody signed in to it with a browser."""

    system: System
    context: BrowserContext
    client: httpx.Client
    big: int = 0
    """Bytes of what is moved through it, where something big is."""

    def create(self, *names: str, image: str = "code-server") -> list[str]:
        """The ids of new workspaces, all of them RUNNING."""
        made = []
        for name in names:
            answer = self.client.post("/api/v1/workspaces", json={"name": name, "image_ref": image})
            assert answer.status_code == 201, answer.text
            made.append(answer.json()["id"])
        ran: set[str] = set()

        def all_ran() -> bool:
            """The first may stand by again before the last one runs."""
            ran.update(name for name, phase in self.phases().items() if phase == "RUNNING")
            return ran.issuperset(made)

        wait_for(all_ran, "RUNNING", 90, 0.2)
        return made

    def phases(self) -> dict[str, str]:
        """By workspace; one in ERROR is a failure that tells why."""
        answer = self.client.get("/api/v1/workspaces")
        assert answer.status_code == 200, answer.text
        items = answer.json()["items"]
        assert not [item["error_message"] for item in items if item["phase"] == "ERROR"]
        return {item["id"]: item["phase"] for item in items}

    def home(self, workspace_id: str) -> Path:
        (home,) = (self.system.data_dir / "volumes").glob(f"users/*/workspaces/{workspace_id}/home")
        return home

    def give_to_its_user(self, workspace_id: str) -> None:
        """What a test has put into a home belongs to the workspace's own user afterwards."""
        home = self.home(workspace_id)
        owner = home.stat()
        for directory, *names in os.walk(home):
            for name in itertools.chain(*names):
                with contextlib.suppress(FileNotFoundError):  # the IDE's own come and go
                    os.chown(Path(directory, name), owner.st_uid, owner.st_gid, follow_symlinks=False)

    def open(self, workspace_id: str, path: str = "") -> Page:
        page = self.context.new_page()
        page.goto(f"{self.system.base_url}/w/{workspace_id}/{path}")
        return page


@contextlib.contextmanager
def a_hub(browser: Browser, **environment: str) -> Iterator[Hub]:
    system = System(SYSTEM | environment)
    try:
        system.start()
        system.admin_password = ADMIN_PASSWORD
        context = browser.new_context(viewport={"width": 1280, "height": 800}, accept_downloads=True)
        entry = {"username": system.admin_username, "password": ADMIN_PASSWORD}
        answer = context.request.post(f"{system.base_url}/api/v1/login", data=entry)
        assert answer.ok, answer.text()
        with contextlib.closing(system.client()) as client:
            yield Hub(system, context, client)
        context.close()
    finally:
        system.close()
