"""Page object of VS Code. Each step waits until VS Code accepts it."""

import re
from pathlib import Path

from playwright.sync_api import Locator, Page, expect

from tests.waiting import PATIENCE

MILLISECONDS = PATIENCE * 1000
"""The shared timeout in Playwright's unit."""
BYTES_PER_WAIT = 64 << 20
"""A busy machine transfers this much within the shared timeout."""
SETTINGS = {
    # Render the terminal as page elements, so that a test can read the prompt.
    "terminal.integrated.gpuAcceleration": "off",
}
READY = """() => ["code/didLoadExtensions", "code/didCreateWorkbenchContributions/4"]
    .every((mark) => performance.getEntriesByName(mark).length > 0)"""
"""VS Code's performance marks: every command is registered, and every part of the window exists."""


def expect_ide(page: Page) -> None:
    expect(page.locator(".monaco-workbench .activitybar")).to_be_visible()


def wait_until_ide_ready(page: Page) -> None:
    """Wait until VS Code accepts input: while it loads, keys are lost and commands are missing."""
    expect_ide(page)
    page.wait_for_function(READY)


def expect_plain_first_screen(page: Page, name: str) -> None:
    """Expect a new workspace to show its name and files, without chat or advertisements."""
    expect(page).to_have_title(re.compile(rf"- {re.escape(name)}$"))
    expect(page.locator(".explorer-folders-view")).to_be_visible()
    expect(page.locator(".part.editor :focus")).to_have_count(1)
    expect(page.locator(".part.auxiliarybar")).to_be_hidden()
    expect(page.locator(".gettingStartedContainer")).to_have_count(0)
    expect(page.get_by_text("Deploy code-server for your team")).to_have_count(0)


def choose(page: Page, entry: str, shown: str) -> None:
    """Choose in the command palette, because the browser's shortcuts hide VS Code's."""
    palette = page.locator(".quick-input-box input")
    page.keyboard.press("F1")
    palette.fill(entry)
    expect(page.locator(".quick-input-list .monaco-list-row.focused")).to_contain_text(shown)
    page.keyboard.press("Enter")
    expect(palette).to_be_hidden()


def run_in_terminal(page: Page, command: str) -> None:
    """Type the command at the prompt of a new terminal."""
    terminals = page.locator(".terminal-wrapper")
    before = terminals.count()
    choose(page, ">Terminal: Create New Terminal", "Terminal: Create New Terminal")
    expect(terminals).to_have_count(before + 1)
    terminal = page.locator(".terminal-wrapper.active")
    expect(terminal.locator(".xterm-rows")).to_contain_text("$")
    expect(terminal.locator(".xterm-helper-textarea")).to_be_focused()
    page.keyboard.type(command + "\n")


def open_file(page: Page, name: str) -> None:
    """Open a file, with the cursor in it.

    It must have existed when the first file was opened in this window: during a new search, VS Code
    shows matches of the previous one and does not correct them.
    """
    choose(page, name, name)
    editor = page.locator(f'.editor-instance .monaco-editor[data-uri$="/{name}"]')
    editor.locator(".view-lines").click()
    expect(editor).to_have_class(re.compile(r"\bfocused\b"))


def edit_a_file(page: Page, name: str, text: str) -> None:
    """Open an empty file, type the text, save."""
    open_file(page, name)
    page.keyboard.type(text)
    expect(page.locator(f'.monaco-editor[data-uri$="/{name}"] .view-lines')).to_have_text(text)
    page.keyboard.press("Control+S")


def choose_in_menu(row: Locator, entry: str) -> None:
    """Choose in a row's context menu by key: a menu that has just opened ignores the mouse."""
    row.click(button="right")
    item = row.page.get_by_role("menuitem", name=entry)
    item.hover()
    expect(item.locator("..")).to_have_class(re.compile(r"\bfocused\b"))
    row.page.keyboard.press("Enter")


def download(page: Page, row: Locator, size: int) -> Path:
    """Download a file. VS Code reads all of it first, so the timeout grows with its size."""
    with page.expect_download(timeout=MILLISECONDS * max(1, size // BYTES_PER_WAIT)) as download:
        choose_in_menu(row, "Download...")
    return Path(download.value.path())


def upload(page: Page, row: Locator, file: Path) -> None:
    with page.expect_file_chooser() as chooser:
        choose_in_menu(row, "Upload...")
    chooser.value.set_files(file)
