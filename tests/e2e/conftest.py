"""A whole system with real code-server, and a real Chromium in front of it."""

import contextlib
import itertools
import json
import os
import shutil
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright
from playwright.sync_api import Error as PlaywrightError

from codehub.settings import default_tools_dir
from tests.e2e import chromium, vscode
from tests.e2e.vscode import MILLISECONDS
from tests.services import TOOLS_DIR, System
from tests.waiting import wait_for

ADMIN_PASSWORD = "a password for end-to-end tests"
SCREENSHOTS = Path(os.environ.get("CODEHUB_SCREENSHOTS", "test-results/screenshots"))
LOGS = SCREENSHOTS.parent / "logs"
SYSTEM = {
    "ADMIN_PASSWORD": ADMIN_PASSWORD,
    "COORDINATOR_IDLE_INTERVAL": "2",
    "COORDINATOR_LEADER_RETRY_INTERVAL": "0.2",
    "DISK_RESERVE_BYTES": "0",
    "GATEWAY_WORKERS": "2",
}


@pytest.fixture(scope="session", autouse=True)
def requirements() -> None:
    """Skip where Chromium or code-server is missing, with the command that installs it."""
    if chromium.PROGRAM is None:
        pytest.skip("Chromium is missing: apt-get install chromium")
    if not (TOOLS_DIR / "bin" / "code-server").exists():
        pytest.skip(f"code-server is missing below {default_tools_dir()}: codehub ide install")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A Chromium per file: while it is open, no other event loop can run in this thread."""
    expect.set_options(timeout=MILLISECONDS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium.__file__,
            args=["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking"],
        )
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def screenshots() -> Path:
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    return SCREENSHOTS


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Save screenshots and logs when a test fails."""
    report = yield
    given = getattr(item, "funcargs", {})
    browser, hub = given.get("browser"), given.get("hub")
    if report.failed and isinstance(browser, Browser):
        report.sections.append(("screenshots", "\n".join(_save_screenshots(browser, item.name))))
    if report.failed and isinstance(hub, Hub):
        report.sections.append(("logs", str(_save_logs(hub.system.data_dir, item.name))))
    return report


def _save_screenshots(browser: Browser, name: str) -> Iterator[str]:
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    pages = [page for context in browser.contexts for page in context.pages]
    for number, page in enumerate(pages, 1):
        path = SCREENSHOTS / f"failed-{name}-{number}.png"
        try:
            page.screenshot(path=path, timeout=10_000)
            yield f"{path}: {page.url}"
        except PlaywrightError as error:
            yield f"{page.url} cannot be shown: {error.message}"


def _save_logs(data_dir: Path, name: str) -> Path:
    """Copy the logs of the system's processes and of VS Code in the homes."""
    kept = LOGS / f"failed-{name}"
    for log in (*data_dir.glob("logs/*"), *data_dir.glob("volumes/**/code-server/**/*.log")):
        copy = kept / log.relative_to(data_dir)
        copy.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # the IDE may rotate it meanwhile
            shutil.copyfile(log, copy)
    return kept


def new_context(browser: Browser, **options: Any) -> BrowserContext:
    """Return a new browser profile with the shared timeout."""
    context = browser.new_context(viewport={"width": 1280, "height": 800}, **options)
    context.set_default_timeout(MILLISECONDS)
    return context


@dataclass
class Hub:
    """A running system whose admin is signed in with a browser and with an API client."""

    system: System
    context: BrowserContext
    client: httpx.Client

    def create(self, *names: str, image: str = "code-server", **options: object) -> list[str]:
        """Create workspaces, wait until they run, and return their ids."""
        made = []
        for name in names:
            body = {"name": name, "image_ref": image, **options}
            answer = self.client.post("/api/v1/workspaces", json=body)
            assert answer.status_code == 201, answer.text
            made.append(answer.json()["id"])

        def all_run() -> bool:
            phases = self.phases()
            return all(phases[workspace_id] == "RUNNING" for workspace_id in made)

        wait_for(all_run, "RUNNING", every=0.2)
        return made

    def change(self, workspace_id: str, **changes: object) -> None:
        answer = self.client.patch(f"/api/v1/workspaces/{workspace_id}", json=changes)
        assert answer.status_code == 200, answer.text

    def workspaces(self) -> dict[str, dict[str, Any]]:
        """Return the workspaces by id. Fail with the reason if one is in ERROR."""
        answer = self.client.get("/api/v1/workspaces")
        assert answer.status_code == 200, answer.text
        items = answer.json()["items"]
        assert not [item["error_message"] for item in items if item["phase"] == "ERROR"]
        return {item["id"]: item for item in items}

    def phases(self) -> dict[str, str]:
        return {name: workspace["phase"] for name, workspace in self.workspaces().items()}

    def home(self, workspace_id: str) -> Path:
        (home,) = (self.system.data_dir / "volumes").glob(f"users/*/workspaces/{workspace_id}/home")
        return home

    def write_settings(self, workspace_id: str) -> None:
        """Add the settings that tests need to the VS Code settings of a new home."""
        settings = self.home(workspace_id) / ".local/share/code-server/User/settings.json"
        added = json.dumps(vscode.SETTINGS).strip("{}")
        settings.write_text(settings.read_text().replace("{", f"{{{added},", 1))
        self.chown_to_home_owner(workspace_id)

    def chown_to_home_owner(self, workspace_id: str) -> None:
        """Make the workspace's user own all files in the home, also those of a test."""
        home = self.home(workspace_id)
        owner = home.stat()
        for directory, *names in os.walk(home):
            for name in itertools.chain(*names):
                with contextlib.suppress(FileNotFoundError):  # the IDE creates and removes files meanwhile
                    os.chown(Path(directory, name), owner.st_uid, owner.st_gid, follow_symlinks=False)

    def open(self, workspace_id: str, script: str = "") -> Page:
        """Open the workspace's page. The script runs before the page's scripts."""
        page = self.context.new_page()
        if script:
            page.add_init_script(script)
        page.goto(f"{self.system.base_url}/w/{workspace_id}/")
        return page


@contextlib.contextmanager
def running_hub(browser: Browser, **environment: str) -> Iterator[Hub]:
    system = System(SYSTEM | environment)
    try:
        system.start()
        system.admin_password = ADMIN_PASSWORD
        context = new_context(browser, accept_downloads=True)
        entry = {"username": system.admin_username, "password": ADMIN_PASSWORD}
        answer = context.request.post(f"{system.base_url}/api/v1/login", data=entry)
        assert answer.ok, answer.text()
        with contextlib.closing(system.client()) as client:
            yield Hub(system, context, client)
        context.close()
    finally:
        system.close()
