"""An unused workspace is stopped and archived, even with an open tab."""

import contextlib
import itertools
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, WebSocket
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from tests.e2e import chromium
from tests.e2e.conftest import ADMIN_PASSWORD, Hub, new_context, running_hub
from tests.e2e.dashboard import DashboardUser
from tests.e2e.vscode import expect_ide, open_file, run_in_terminal, wait_until_ide_ready
from tests.waiting import PATIENCE, wait_for

TTL = 5
SYSTEM = {
    "TTL_STANDBY_SECONDS": str(TTL),
    "TTL_ARCHIVE_SECONDS": str(TTL),
    "ACTIVITY_FLUSH_INTERVAL": "1",
    "COORDINATOR_TTL_INTERVAL": "1",
    "LIMITS_MAX_RUNNING_PER_USER": "9",
}
NEVER = {"standby_ttl_seconds": 0, "archive_ttl_seconds": 0}
"""Tests set a TTL when they are ready, so that they do not depend on the load time of a page."""
SHORT_IDLE_CHECKS = """{
    const setIntervalAsBefore = window.setInterval;
    window.setInterval = (work, time, ...rest) => time === 30000
        ? setIntervalAsBefore(() => window.isLeftAlone && work(), 500)
        : setIntervalAsBefore(work, time, ...rest);
}"""
"""Shortens the time until VS Code reports an idle window from 70 s to 11 s.

It does so once `isLeftAlone` is set. VS Code checks for input every 30 s. A report before it has
connected would be lost.
"""


@pytest.fixture(scope="module")
def hub(browser: Browser) -> Iterator[Hub]:
    with running_hub(browser, **SYSTEM) as made:
        yield made


def test_an_idle_workspace_stops_and_archives_and_a_visit_starts_it(
    hub: Hub, browser: Browser, screenshots: Path
) -> None:
    (workspace_id,) = hub.create("unused", **NEVER)
    visitor = DashboardUser(new_context(browser), hub.system, screenshots)
    visitor.sign_in("admin", ADMIN_PASSWORD)
    visitor.select_workspace(workspace_id)
    visitor.expect_phase("RUNNING")
    hub.change(workspace_id, standby_ttl_seconds=None)
    visitor.expect_phase("STANDBY")

    hub.change(workspace_id, **NEVER)
    visit = visitor.context.new_page()
    visit.goto(f"{hub.system.base_url}/w/{workspace_id}/")
    visitor.take_screenshot("9-loading", visit)
    expect_ide(visit)
    visit.close()
    hub.change(workspace_id, standby_ttl_seconds=None)
    visitor.expect_phase("STANDBY")
    hub.change(workspace_id, archive_ttl_seconds=None)
    visitor.expect_phase("ARCHIVED")

    hub.change(workspace_id, **NEVER)
    needs_restore = visitor.context.new_page()
    answer = needs_restore.goto(f"{hub.system.base_url}/w/{workspace_id}/")
    assert answer is not None
    assert answer.status == 502
    visitor.take_screenshot("10-needs-restore", needs_restore)
    needs_restore.get_by_role("button").first.click()
    expect_ide(needs_restore)
    visitor.context.close()


def test_an_open_tab_does_not_count_as_use_but_a_key_does(hub: Hub) -> None:
    used, merely_open = hub.create("used", "merely open", **NEVER)
    (hub.home(used) / "note.txt").touch()
    hub.write_settings(used)
    page = hub.open(used, SHORT_IDLE_CHECKS)
    other = hub.open(merely_open, SHORT_IDLE_CHECKS)
    wait_until_ide_ready(page)
    open_file(page, "note.txt")
    wait_until_ide_ready(other)
    for window in (page, other):
        window.evaluate("window.isLeftAlone = true")

    hub.change(merely_open, standby_ttl_seconds=None)
    wait_for(
        lambda: hub.phases()[merely_open] == "STANDBY",
        "the workspace of an open tab to become STANDBY",
        every=0.5,
    )
    wait_for(lambda: idle_seconds(hub, used) > TTL, "the other tab to be idle as well", every=0.5)

    last_use = last_access(hub, used)
    page.keyboard.press("x")
    wait_for(lambda: last_access(hub, used) > last_use, "the key to count as use", every=0.5)
    assert hub.phases()[merely_open] == "STANDBY", "an open tab started the workspace"
    page.close()
    other.close()


def last_access(hub: Hub, workspace_id: str) -> datetime:
    return datetime.fromisoformat(hub.workspaces()[workspace_id]["last_access_at"])


def idle_seconds(hub: Hub, workspace_id: str) -> float:
    return (datetime.now(UTC) - last_access(hub, workspace_id)).total_seconds()


REAL_TTL = 20
LOADED = 70
"""Seconds for which a newly loaded window counts as used."""
THROTTLED = 300
"""Seconds until Chromium runs the timers of a hidden tab once a minute.

A tab that had finished loading is throttled within seconds. On a busy machine it may not have.
"""
ACT_EVERY = 40
"""Seconds between keys, more than the TTL, so that presence has to count in between.

VS Code reports an idle window at the earliest 40 s after the last key. The TTL adds 20 s.
"""
BUSY = ("editor", "terminal", "output")
QUIET = ("visible", "hidden", "laptop")
IDE_IS_LOADED = "document.querySelector('.monaco-workbench .activitybar') !== null"
REPEATED_OUTPUT = "while sleep 5; do echo still running; done"


class RealTab:
    """A tab of a Chromium without Playwright, which makes every tab visible."""

    def __init__(self, devtools: ClientConnection) -> None:
        self._devtools = devtools
        self._numbers = itertools.count(1)
        self._target = self.send("Target.createTarget", url="about:blank")["targetId"]
        attached = self.send("Target.attachToTarget", targetId=self._target, flatten=True)
        self._session = str(attached["sessionId"])

    def send(self, method: str, session: str | None = None, **parameters: object) -> dict[str, Any]:
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        self._devtools.send(json.dumps(message if session is None else message | {"sessionId": session}))
        while (answer := json.loads(self._devtools.recv(timeout=PATIENCE))).get("id") != number:
            pass
        assert "error" not in answer, answer["error"]
        result: dict[str, Any] = answer["result"]
        return result

    def open(self, hub: Hub, workspace_id: str) -> None:
        """Open the IDE, then another tab in front of it."""
        url = hub.system.base_url
        cookies = [
            {"name": cookie["name"], "value": cookie["value"], "url": url}
            for cookie in hub.context.cookies(url)
        ]
        self.send("Network.setCookies", self._session, cookies=cookies)
        self.send("Page.navigate", self._session, url=f"{url}/w/{workspace_id}/")
        wait_for(lambda: self.evaluate(IDE_IS_LOADED), "the IDE in the real tab", every=0.5)
        front = self.send("Target.createTarget", url="about:blank")["targetId"]
        self.send("Target.activateTarget", targetId=front)
        wait_for(lambda: self.evaluate("document.visibilityState") == "hidden", "the tab to be hidden")

    def evaluate(self, expression: str) -> object:
        return self.send("Runtime.evaluate", self._session, expression=expression)["result"].get("value")


@pytest.fixture
def real_tab() -> Iterator[RealTab]:
    profile = Path(tempfile.mkdtemp(prefix="chromium-"))
    command = [
        chromium.__file__,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-background-networking",
    ]
    command += ["--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    address = profile / "DevToolsActivePort"
    try:
        wait_for(lambda: address.exists() and address.read_text().count("\n") == 1, "Chromium's devtools")
        port, path = address.read_text().split()
        with connect(f"ws://127.0.0.1:{port}{path}", max_size=None) as devtools:
            tab = RealTab(devtools)
            yield tab
            with contextlib.suppress(AssertionError, ConnectionClosed, TimeoutError):
                tab.send("Browser.close")
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(profile, ignore_errors=True)


class Laptop:
    """A browser whose network is lost and restored."""

    def __init__(self, hub: Hub, browser: Browser, workspace_id: str) -> None:
        self._context = new_context(browser, storage_state=hub.context.storage_state())
        self._page = self._context.new_page()
        self.reconnects = 0
        self._page.on("websocket", self._count)
        self._page.goto(f"{hub.system.base_url}/w/{workspace_id}/")

    def _count(self, socket: WebSocket) -> None:
        self.reconnects += "reconnection=true" in socket.url

    def sleep(self) -> None:
        """Cut the network of a connected window without closing its connections."""
        wait_until_ide_ready(self._page)
        self._context.set_offline(True)

    def wake(self) -> None:
        self._context.set_offline(False)


def act(pages: dict[str, Page], number: int) -> None:
    """Press a key in each used window. In the editor, every second one saves."""
    pages["editor"].keyboard.press("Control+S" if number % 2 else "x")
    pages["terminal"].keyboard.press("x")


@pytest.mark.full
@pytest.mark.timeout(900)
def test_use_keeps_a_workspace_running_and_an_open_tab_does_not(
    hub: Hub, browser: Browser, real_tab: RealTab
) -> None:
    """All cases at once and in real time, with VS Code's 70 s until it reports an idle window."""
    ids = dict(zip((*BUSY, *QUIET), hub.create(*BUSY, *QUIET, **NEVER), strict=True))
    (hub.home(ids["editor"]) / "note.txt").touch()
    for name in BUSY:
        hub.write_settings(ids[name])

    pages = {name: hub.open(ids[name]) for name in BUSY}
    for page in pages.values():
        wait_until_ide_ready(page)
    open_file(pages["editor"], "note.txt")
    run_in_terminal(pages["terminal"], "true")
    run_in_terminal(pages["output"], REPEATED_OUTPUT)

    laptop = Laptop(hub, browser, ids["laptop"])
    visible = hub.open(ids["visible"])
    real_tab.open(hub, ids["hidden"])
    wait_until_ide_ready(visible)
    laptop.sleep()
    left_at = time.monotonic()
    act(pages, 0)
    for workspace_id in ids.values():
        hub.change(workspace_id, standby_ttl_seconds=REAL_TTL)

    acts, awake, stood_by = 1, False, {}
    while (now := time.monotonic() - left_at) < LOADED + 2 * REAL_TTL or len(stood_by) < len(QUIET):
        if now >= acts * ACT_EVERY:
            act(pages, acts)
            acts += 1
        phases = hub.phases()
        for name in BUSY:
            assert phases[ids[name]] == "RUNNING", f"{name}: {phases[ids[name]]} after {now:.0f} s"
        for name in QUIET:
            if phases[ids[name]] == "STANDBY":
                stood_by.setdefault(name, now)
        if "laptop" in stood_by and not awake:
            laptop.wake()
            awake = True
        assert now < THROTTLED + REAL_TTL + PATIENCE, f"only {stood_by} stood by within {now:.0f} s"
        visible.wait_for_timeout(1000)
    assert laptop.reconnects > 0, "the laptop has not tried to reconnect"
    final = hub.phases()
    assert {name: final[ids[name]] for name in QUIET} == dict.fromkeys(QUIET, "STANDBY"), (
        "an open tab started a workspace"
    )
