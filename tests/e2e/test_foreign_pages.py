"""Attacks by a page of one workspace on CodeHub and other workspaces, in a real browser.

Over plain http on a public name, browsers send no Sec-Fetch headers, and all hosts are same-site.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
from playwright.async_api import BrowserContext, Page, async_playwright

from codehub.domain.states import Phase
from tests.e2e import chromium
from tests.e2e.conftest import MILLISECONDS
from tests.integration.gateway.browser import Browser
from tests.integration.gateway.harness import MINE, SESSION, THEIRS, Upstream, World, world
from tests.integration.gateway.test_ports import App, host_of, listening
from tests.waiting import eventually

PLATFORM, APPS = "hub.example.org", "apps.example.org"
ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking",
    "--disable-features=HttpsUpgrades,HttpsFirstBalancedModeAutoEnable",
]  # fmt: skip


@dataclass
class AttackFixture:
    world: World
    context: BrowserContext
    app: App
    pages: dict[str, str]
    """Responses of upstreams, by `host/path`. Other paths return a script that sets `loaded`."""

    @property
    def mine(self) -> str:
        return f"{MINE}.{APPS}"

    @property
    def other(self) -> str:
        return f"{THEIRS}.{APPS}"

    @property
    def port(self) -> str:
        return host_of(self.world, self.app.port).replace(PLATFORM, APPS)

    async def open(self, host: str, path: str = "/") -> Page:
        page = await self.context.new_page()
        await page.goto(f"http://{host}{path}")
        return page


@pytest.fixture
async def fixture() -> AsyncIterator[AttackFixture]:
    pages: dict[str, str] = {}

    async def serve(upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = (await upstream.read_head(reader)).decode("latin-1")
            path = head.split(" ")[1]
            host = head.partition("\r\nhost: ")[2].partition("\r\n")[0]
            body = pages.get(f"{host}{path}", "window.loaded = true; document.title = 'open';").encode()
            kind = "html" if f"{host}{path}" in pages else "javascript"
            writer.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: text/%b\r\nContent-Length: %d\r\n\r\n"
                % (kind.encode(), len(body))
            )
            writer.write(body)

    async with world(public=PLATFORM, apps_domain=APPS) as made, listening(made) as app:
        made.set_phase(THEIRS, Phase.RUNNING)
        for upstream in (made.ide, made.api, app):
            upstream.script = serve
        async with chromium_for(made) as context:
            session = {"name": "session", "value": SESSION, "domain": PLATFORM, "path": "/"}
            await context.add_cookies([session | {"httpOnly": True, "sameSite": "Lax"}])  # type: ignore[list-item]
            yield AttackFixture(made, context, app, pages)


@asynccontextmanager
async def chromium_for(made: World) -> AsyncIterator[BrowserContext]:
    rules = f"--host-resolver-rules=MAP *.example.org 127.0.0.1:{made.gateway.port}"
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=chromium.__file__, args=[*ARGUMENTS, rules]
        )
        context = await browser.new_context()
        context.set_default_timeout(MILLISECONDS)
        yield context
        await browser.close()


async def frame_urls(page: Page) -> list[str]:
    return [frame.url for frame in page.frames if frame is not page.main_frame]


async def test_another_workspaces_page_can_neither_frame_nor_load(fixture: AttackFixture) -> None:
    fixture.pages[f"{fixture.mine}/"] = "<title>mine</title>"
    fixture.pages[f"{fixture.other}/"] = f"""<meta name="referrer" content="no-referrer">
        <iframe src="http://{fixture.mine}/"></iframe>
        <script src="http://{fixture.mine}/secret.js" onerror="window.failed = true"></script>"""
    assert await (await fixture.open(fixture.mine)).title() == "mine", "the browser has its cookie"
    page = await fixture.open(fixture.other)
    assert await page.evaluate("[window.loaded, window.failed]") == [None, True]
    await eventually(
        lambda: frame_urls(page), "the frame to be refused", lambda urls: "chrome-error" in str(urls)
    )


async def test_the_ports_of_one_workspace_frame_and_load_each_other(fixture: AttackFixture) -> None:
    fixture.pages[f"{fixture.port}/"] = "<title>app</title>"
    assert await (await fixture.open(fixture.port)).title() == "app"
    fixture.pages[f"{fixture.mine}/"] = f"""<iframe src="http://{fixture.port}/"></iframe>
        <script src="http://{fixture.port}/shared.js"></script>"""
    page = await fixture.open(fixture.mine)
    assert await page.evaluate("window.loaded") is True
    assert await page.frames[1].title() == "app"
    fixture.pages[f"{fixture.port}/framing"] = f"""<iframe src="http://{fixture.mine}/framed"></iframe>"""
    fixture.pages[f"{fixture.mine}/framed"] = "<title>ide</title>"
    page = await fixture.open(fixture.port, "/framing")
    assert await page.frames[1].title() == "ide"


async def test_a_session_planted_beside_the_browsers_own_is_refused(fixture: AttackFixture) -> None:
    fixture.pages[f"{PLATFORM}/"] = "<title>dashboard</title>"
    fixture.pages[f"{fixture.other}/"] = """<script>
        document.cookie = "session=planted; domain=example.org; path=/";
        document.cookie = "session=planted; domain=example.org; path=/api";
    </script>"""
    await fixture.open(fixture.other)
    page = await fixture.open(PLATFORM)
    assert await page.title() == "Sign in again · CodeHub"
    await page.goto(f"http://{PLATFORM}/")
    assert await page.title() == "dashboard", "both are gone"
    # A cookie that was planted for a longer path is neither sent here nor cleared:
    # docs/threat-model.md, "Not stopped".
    left = [cookie for cookie in await fixture.context.cookies() if cookie["name"] == "session"]
    assert [cookie["path"] for cookie in left] == ["/api"]


async def test_a_browser_full_of_planted_cookies_recovers(fixture: AttackFixture) -> None:
    fixture.pages[f"{PLATFORM}/"] = "<title>dashboard</title>"
    fixture.pages[f"{fixture.other}/"] = """<script>
        const value = "x".repeat(3900);
        for (let i = 0; i < 60; i++) document.cookie = `bomb${i}=${value}; domain=example.org; path=/`;
    </script>"""
    await fixture.open(fixture.other)
    page = await fixture.open(PLATFORM)
    assert await page.title() == "Your browser sent too many cookies · CodeHub"
    for _ in range(10):
        await page.get_by_text("Try again").last.click()
        await page.wait_for_load_state()
        if await page.title() == "dashboard":
            return
    raise AssertionError("the cookies were not cleared")


async def test_a_link_with_a_ticket_opens_nothing_in_another_browser(fixture: AttackFixture) -> None:
    link = await Browser(fixture.world).find_ticket(f"http://{PLATFORM}/w/{MINE}/")
    page = await fixture.context.new_page()
    await page.goto(link)
    assert await page.title() == "This link does not open here · CodeHub"
    fixture.pages[f"{fixture.mine}/"] = "<title>mine</title>"
    await page.get_by_text("Open the workspace").click()
    await page.wait_for_url(f"http://{fixture.mine}/")
    assert await page.title() == "mine"
