"""The story of a new user, in Chromium, with real code-server."""

import re
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Browser, BrowserContext, Page, expect
from playwright.sync_api import TimeoutError as TooLate

from tests.e2e.conftest import ADMIN_PASSWORD, SYSTEM
from tests.services import System

LONG = 90_000
TEXT = "a line that must come back"


class Visitor:
    """A person at the dashboard."""

    def __init__(self, context: BrowserContext, system: System, screenshots: Path) -> None:
        self.context = context
        self.system = system
        self.page = context.new_page()
        self._screenshots = screenshots

    def shoot(self, name: str, page: Page | None = None) -> None:
        (page or self.page).screenshot(path=self._screenshots / f"{name}.png")

    def sign_in(self) -> None:
        self.page.goto(self.system.base_url)
        self.page.get_by_test_id("login-username").fill("admin")
        self.page.get_by_test_id("login-password").fill(ADMIN_PASSWORD)
        self.shoot("1-sign-in")
        self.page.get_by_test_id("login-submit").click()

    def create(self, name: str) -> str:
        self.page.get_by_test_id("new-workspace").first.click()
        self.page.get_by_test_id("create-name").fill(name)
        self.shoot("2-create")
        self.page.get_by_test_id("create-submit").click()
        card = self.page.get_by_test_id("workspace-card")
        expect(card).to_be_visible(timeout=LONG)
        return str(card.get_attribute("data-workspace-id"))

    def is_in(self, phase: str) -> None:
        card = self.page.get_by_test_id("workspace-card")
        expect(card).to_have_attribute("data-phase", phase, timeout=LONG)
        expect(card).to_have_attribute("data-operation", "NONE", timeout=LONG)

    def does(self, action: str) -> None:
        self.page.get_by_test_id(f"action-{action}").click()

    def opens(self) -> Page:
        with self.context.expect_page() as opened:
            self.does("open")
        return opened.value


def ide_is_there(page: Page) -> None:
    expect(page.locator(".monaco-workbench")).to_be_visible(timeout=LONG)
    expect(page.locator(".activitybar")).to_be_visible(timeout=LONG)


def choose(page: Page, entry: str, shown: str) -> None:
    """Through the command palette, as the keyboard's shortcuts differ between browsers.

    One that is opened before its command is registered never shows it, and what takes the focus closes it:
    then it is opened anew.
    """
    palette = page.locator(".quick-input-box input")
    first = page.locator(".quick-input-list .monaco-list-row").first
    for last in (False, False, False, True):
        patience = LONG if last else 10_000
        page.keyboard.press("F1")
        try:
            palette.fill(entry, timeout=patience)
            expect(first).to_contain_text(shown, timeout=patience)
        except (AssertionError, TooLate):
            if last:
                raise
            page.keyboard.press("Escape")
        else:
            break
    page.keyboard.press("Enter")
    expect(palette).to_be_hidden(timeout=LONG)


def run_in_terminal(page: Page, command: str) -> None:
    choose(page, ">Terminal: Create New Terminal", "Terminal: Create New Terminal")
    expect(page.locator(".terminal-wrapper.active .xterm")).to_be_visible(timeout=LONG)
    page.locator(".terminal-wrapper.active .xterm-helper-textarea").focus()
    page.keyboard.type(command + "\n", delay=10)


def edit_a_file(page: Page, name: str, text: str) -> None:
    """Open an existing file, type into it, save."""
    choose(page, name, name)
    editor = page.locator(".editor-instance .monaco-editor .view-lines").first
    expect(editor).to_be_visible(timeout=LONG)
    editor.click()
    page.keyboard.type(text, delay=10)
    page.keyboard.press("Control+S")


def home_of(system: System, workspace_id: str) -> Path:
    (home,) = (system.data_dir / "volumes").glob(f"users/*/workspaces/{workspace_id}/home")
    return home


def test_the_story(
    system: System, browser: Browser, screenshots: Path, until: Callable[[Callable[[], object], str], None]
) -> None:
    visitor = Visitor(browser.new_context(viewport={"width": 1280, "height": 800}), system, screenshots)
    visitor.sign_in()
    workspace_id = visitor.create("my first workspace")
    visitor.is_in("RUNNING")
    visitor.shoot("3-running")

    ide = visitor.opens()
    ide.wait_for_url(re.compile(rf"//{workspace_id}\.localhost:"), timeout=LONG)
    ide_is_there(ide)
    run_in_terminal(ide, "touch note.txt; echo from-the-terminal > terminal.txt; id -un")
    home = home_of(system, workspace_id)
    until(lambda: (home / "terminal.txt").exists(), "the terminal's file")
    edit_a_file(ide, "note.txt", TEXT)
    until(lambda: TEXT in (home / "note.txt").read_text(), "the saved file")
    visitor.shoot("4-ide", ide)
    ide.close()

    visitor.does("stop")
    visitor.is_in("STANDBY")
    visitor.does("archive")
    visitor.is_in("ARCHIVED")
    assert not home.exists()
    visitor.shoot("5-archived")
    visitor.does("restore")
    visitor.is_in("STANDBY")
    assert (home / "note.txt").read_text() == TEXT
    visitor.does("start")
    visitor.is_in("RUNNING")
    again = visitor.opens()
    ide_is_there(again)
    visitor.shoot("6-restored", again)
    again.close()

    visitor.does("delete")
    visitor.page.get_by_test_id("confirm-delete").click()
    expect(visitor.page.get_by_test_id("workspace-card")).to_have_count(0, timeout=LONG)
    visitor.page.get_by_test_id("nav-trash").click()
    visitor.is_in("DELETED")
    visitor.shoot("7-trash")
    visitor.does("undelete")
    visitor.page.get_by_test_id("nav-workspaces").click()
    visitor.is_in("ARCHIVED")
    visitor.does("start")
    visitor.is_in("RUNNING")
    assert (home / "note.txt").read_text() == TEXT
    visitor.page.get_by_test_id("lang-switch").click()
    visitor.shoot("8-korean")


def test_left_alone_it_stands_by_and_archives_itself_and_a_visit_wakes_it(
    make_system: Callable[..., System], browser: Browser, screenshots: Path
) -> None:
    short = {
        "TTL_STANDBY_SECONDS": "15",
        "TTL_ARCHIVE_SECONDS": "20",
        "ACTIVITY_FLUSH_INTERVAL": "1",
        "COORDINATOR_TTL_INTERVAL": "1",
    }
    system = make_system(**SYSTEM, **short).start()
    visitor = Visitor(browser.new_context(), system, screenshots)
    visitor.sign_in()
    workspace_id = visitor.create("left alone")
    visitor.is_in("RUNNING")
    visitor.is_in("STANDBY")
    visit = visitor.context.new_page()
    visit.goto(f"{system.base_url}/w/{workspace_id}/")
    visitor.shoot("9-loading", visit)
    ide_is_there(visit)
    visit.close()
    visitor.is_in("STANDBY")
    visitor.is_in("ARCHIVED")
    needs_restore = visitor.context.new_page()
    answer = needs_restore.goto(f"{system.base_url}/w/{workspace_id}/")
    assert answer is not None
    assert answer.status == 502
    visitor.shoot("10-needs-restore", needs_restore)
    needs_restore.get_by_role("button").first.click()
    ide_is_there(needs_restore)
