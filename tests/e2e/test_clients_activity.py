"""Who uses VS Code keeps the workspace RUNNING; a tab that is merely open does not (spec, section 6).

In real time: VS Code takes a window that has just loaded for used, and says about 70 s later that nobody is
there. So all scenes play at once, in workspaces of one system.
"""

import contextlib
import itertools
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, WebSocket, expect
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from tests.e2e.conftest import CHROMIUM, Hub, a_hub
from tests.e2e.test_story import LONG, choose, ide_is_there, run_in_terminal
from tests.services import wait_for

TTL = 40
SLACK = 90 + 40
"""What is promised, and what six windows that come up at once on a busy machine may take longer."""
LOADED = 70
"""How long after its load a window at most says that somebody is there."""
ACT_EVERY = 60
BUSY = ("editor", "terminal", "output")
QUIET = ("visible", "hidden", "laptop")
EXTENSION_HOST = b'"desiredConnectionType":2'
"""In what a window sends first on the socket by which it tells whether somebody is there."""
IDE_IS_THERE = "document.querySelector('.monaco-workbench .activitybar') !== null"
CHATTER = "while sleep 5; do echo still running; done"


class RealTab:
    """A tab of a Chromium that Playwright does not drive: there, every tab believes to be visible."""

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
        while (answer := json.loads(self._devtools.recv(timeout=60))).get("id") != number:
            pass
        assert "error" not in answer, answer["error"]
        result: dict[str, Any] = answer["result"]
        return result

    def open(self, hub: Hub, workspace_id: str) -> None:
        """The IDE, and then another tab in front of it."""
        url = hub.system.base_url
        cookies = [
            {"name": cookie["name"], "value": cookie["value"], "url": url}
            for cookie in hub.context.cookies(url)
        ]
        self.send("Network.setCookies", self._session, cookies=cookies)
        self.send("Page.navigate", self._session, url=f"{url}/w/{workspace_id}/")
        wait_for(lambda: self.evaluate(IDE_IS_THERE), "the IDE in the real tab", 90, every=0.5)
        front = self.send("Target.createTarget", url="about:blank")["targetId"]
        self.send("Target.activateTarget", targetId=front)
        wait_for(lambda: self.evaluate("document.visibilityState") == "hidden", "the tab to be hidden")

    def evaluate(self, expression: str) -> object:
        return self.send("Runtime.evaluate", self._session, expression=expression)["result"].get("value")


@pytest.fixture
def real_tab() -> Iterator[RealTab]:
    profile = Path(tempfile.mkdtemp(prefix="chromium-"))
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
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


@pytest.fixture
def hub(browser: Browser) -> Iterator[Hub]:
    short = {"ACTIVITY_FLUSH_INTERVAL": "2", "COORDINATOR_TTL_INTERVAL": "2"}
    with a_hub(browser, TTL_STANDBY_SECONDS=str(TTL), LIMITS_MAX_RUNNING_PER_USER="6", **short) as made:
        yield made


class Laptop:
    """A browser whose network goes and comes back."""

    def __init__(self, hub: Hub, browser: Browser, workspace_id: str) -> None:
        self._context = browser.new_context(storage_state=hub.context.storage_state())
        self._page = self._context.new_page()
        self.connects = self.reconnects = 0
        self._page.on("websocket", self._watch)
        self._page.goto(f"{hub.system.base_url}/w/{workspace_id}/")

    def _watch(self, socket: WebSocket) -> None:
        self.reconnects += "reconnection=true" in socket.url
        socket.on("framesent", self._notice)

    def _notice(self, payload: str | bytes) -> None:
        self.connects += isinstance(payload, bytes) and EXTENSION_HOST in payload

    def sleep(self) -> None:
        """Once somebody was seen there: the network goes, and no connection is told of it."""
        deadline = time.monotonic() + LONG / 1000
        while not self.connects:
            assert time.monotonic() < deadline, "the laptop's VS Code does not connect"
            self._page.wait_for_timeout(200)
        self._context.set_offline(True)

    def wake(self) -> None:
        self._context.set_offline(False)


def edit(page: Page) -> None:
    choose(page, "note.txt", "note.txt")
    lines = page.locator(".editor-instance .monaco-editor .view-lines").first
    expect(lines).to_be_visible(timeout=LONG)
    lines.click()


def act(pages: dict[str, Page], number: int) -> None:
    """One key in each window that is used; in the editor every second time it saves."""
    pages["editor"].keyboard.press("Control+S" if number % 2 else "x")
    pages["terminal"].keyboard.press("x")


@pytest.mark.timeout(450)
def test_use_keeps_it_running_and_an_open_tab_does_not(hub: Hub, browser: Browser, real_tab: RealTab) -> None:
    ids = dict(zip((*BUSY, *QUIET), hub.create(*BUSY, *QUIET), strict=True))
    (hub.home(ids["editor"]) / "note.txt").touch()
    hub.give_to_its_user(ids["editor"])

    pages = {name: hub.open(ids[name]) for name in BUSY}
    for page in pages.values():
        ide_is_there(page)
    edit(pages["editor"])
    run_in_terminal(pages["terminal"], "true")
    run_in_terminal(pages["output"], CHATTER)

    laptop = Laptop(hub, browser, ids["laptop"])
    visible = hub.open(ids["visible"])
    real_tab.open(hub, ids["hidden"])
    ide_is_there(visible)
    laptop.sleep()

    left_at = time.monotonic()
    acts, awake, stood_by = 0, False, {}
    while (now := time.monotonic() - left_at) < LOADED + 2 * TTL or len(stood_by) < len(QUIET):
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
        assert now < TTL + SLACK or len(stood_by) == len(QUIET), (
            f"only {stood_by} stood by within {now:.0f} s"
        )
        visible.wait_for_timeout(1000)
    assert laptop.reconnects > 0, "the laptop has not tried to come back"
    final = hub.phases()
    assert {name: final[ids[name]] for name in QUIET} == dict.fromkeys(QUIET, "STANDBY"), (
        "and nothing wakes them"
    )
