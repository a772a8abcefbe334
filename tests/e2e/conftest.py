"""A whole system with real code-server, and a real Chromium in front of it."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

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
        wait_for(condition, what, 60)

    return wait
