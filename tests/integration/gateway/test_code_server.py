"""The gateway with the real code-server and Chromium: it works, and it knows when someone is there."""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import psutil
import pytest
from playwright.async_api import Page, async_playwright

from codehub.gateway.config import Timeouts
from tests.integration.gateway.harness import MINE, SESSION, World, until, world
from tests.services import TOOLS_DIR

CODE_SERVER = TOOLS_DIR / "bin" / "code-server"
CHROMIUM = Path("/usr/bin/chromium")

pytestmark = pytest.mark.skipif(
    not CODE_SERVER.exists() or not CHROMIUM.exists(),
    reason="code-server or Chromium is missing: make install-tests",
)


@asynccontextmanager
async def code_server(made: World) -> AsyncIterator[Path]:
    """The home of a code-server that listens where the workspace's IDE should."""
    await made.ide.stop()
    made.ide.path.unlink(missing_ok=True)
    home = made.directory / "home"
    home.mkdir()
    (home / "notes.md").write_text("# A heading\n")
    process = await asyncio.create_subprocess_exec(
        str(CODE_SERVER), "--socket", str(made.ide.path), "--auth", "none", "--disable-telemetry",
        "--disable-update-check", "--disable-workspace-trust", str(home),
        env=os.environ | {"HOME": str(home)}, start_new_session=True,
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        await until(made.ide.path.exists, 60)
        yield home
    finally:
        tree = psutil.Process(process.pid)
        family = [tree, *tree.children(recursive=True)]  # terminals have sessions of their own
        for member in family:
            with suppress(psutil.NoSuchProcess):  # one may end while another is killed
                member.kill()
        await process.wait()
        psutil.wait_procs(family, timeout=10)


@asynccontextmanager
async def browser_page(made: World) -> AsyncIterator[tuple[Page, list[str]]]:
    """A signed-in page, and the answers it got that it should not have."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        context = await browser.new_context()
        await context.add_cookies([{"name": "session", "value": SESSION, "url": f"http://{made.platform}"}])
        page = await context.new_page()
        refused: list[str] = []
        page.on(
            "response",
            lambda got: (
                refused.append(f"{got.status} {got.url}") if got.status in (401, 403, 502, 503) else None
            ),
        )
        yield page, refused
        await browser.close()


async def open_ide(page: Page, made: World) -> None:
    await page.goto(f"http://{made.platform}/w/{MINE}/")
    await page.wait_for_selector(".explorer-viewlet .monaco-list-row", timeout=90_000)


async def type_until_answered(page: Page, answer: Path) -> None:
    """A shell that is still starting may lose what is typed."""
    await page.wait_for_selector(".terminal-wrapper .xterm-screen", timeout=60_000)
    deadline = time.monotonic() + 60
    while not answer.exists() or answer.read_text() != "42\n":
        assert time.monotonic() < deadline, "the terminal does not answer"
        await page.locator(".terminal-wrapper .xterm-screen").first.click()
        await page.keyboard.type("echo $((6 * 7)) > answer\n")
        await asyncio.sleep(2)


async def test_what_a_person_does_is_activity_and_an_open_tab_is_not() -> None:
    async with (
        world(timeouts=Timeouts()) as made,
        code_server(made) as home,
        browser_page(made) as (page, refused),
    ):
        recorder = made.gateway.recorder
        await page.clock.install()
        await open_ide(page, made)
        assert page.url.startswith(f"http://{made.host}/")
        await until(lambda: any(item._present for item in recorder._watched))

        await page.get_by_text("notes.md").first.dblclick()
        await page.locator(".editor-instance .view-line").first.click()
        recorder.collect()
        recorder_sees = lambda: MINE in recorder._seen  # noqa: E731
        await page.keyboard.type("typed ")
        await until(recorder_sees)
        await page.wait_for_selector(".editor-instance .view-line:has-text('typed')")
        await page.keyboard.press("Control+s")
        await until(lambda: "typed" in (home / "notes.md").read_text(), 30)

        await page.keyboard.press("Control+Backquote")
        await type_until_answered(page, home / "answer")

        deadline = time.monotonic() + 60
        while not any(item._present is False for item in recorder._watched):
            assert time.monotonic() < deadline, "the IDE does not report that nobody is there"
            await page.clock.fast_forward(40_000)
            await asyncio.sleep(1)
        await asyncio.sleep(2)  # what was already under way arrives
        recorder.collect()
        (home / "notes.md").write_text("overwritten\n")
        await page.wait_for_selector(".editor-instance .view-line:has-text('overwritten')", timeout=30_000)
        assert not recorder.collect()

        await page.mouse.click(700, 300)
        await until(recorder_sees)
        assert not refused


async def test_the_path_mode_carries_the_ide() -> None:
    async with (
        world(apps=False, timeouts=Timeouts()) as made,
        code_server(made),
        browser_page(made) as (page, refused),
    ):
        await open_ide(page, made)
        assert page.url.startswith(f"http://{made.platform}/w/{MINE}/")
        await page.get_by_text("notes.md").first.dblclick()
        await page.wait_for_selector(".editor-instance .view-line")
        await page.locator('.editor-actions [aria-label*="Preview"]').first.click()
        await page.wait_for_selector("iframe.webview.ready", timeout=60_000)
        assert not refused
