"""Real clients through the gateway, in both modes: VS Code, JupyterLab, Vite."""

import contextlib
import hashlib
import os
import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, expect

from tests.e2e.conftest import Hub, running_hub
from tests.e2e.vscode import (
    choose,
    download,
    edit_a_file,
    open_file,
    run_in_terminal,
    upload,
    wait_until_ide_ready,
)
from tests.selection import EVERYTHING
from tests.services import TOOLS_DIR
from tests.waiting import wait_for, wait_while_growing

IMAGES = Path(__file__).parents[2] / "images" / "images.toml"
MODES = {"own-origins": {}, "path-mode": {"APPS_DOMAIN": ""}}
BOTH = tuple(MODES)
OWN_ORIGINS_BY_DEFAULT = ("own-origins", pytest.param("path-mode", marks=pytest.mark.full))
PATH_MODE_BY_DEFAULT = (pytest.param("own-origins", marks=pytest.mark.full), "path-mode")
"""Mode of each client in `make test`. test_new_user_journey.py covers VS Code on its own origin."""
NODE_MODULES = Path(__file__).parents[2] / "web" / "node_modules"
VITE_PACKAGES = (
    *("vite", "esbuild", "@esbuild", "rollup", "@rollup", "postcss", "nanoid", "picocolors", "source-map-js"),
    *("tinyglobby", "fdir", "picomatch"),
)
VITE_PORT = 5173
MIB = 1 << 20
BIG = (500 if EVERYTHING else 16) * MIB
"""Above 15 MiB, JupyterLab asks before an upload."""
MAX_GROWTH = 64 * MIB
WITHOUT_DIRECTORY_PICKER = "window.showDirectoryPicker = undefined"
"""Disables the picker, a system dialog that a test cannot answer."""


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project's images with more memory, because VS Code buffers 500 MB several times."""
    path = tmp_path_factory.mktemp("images") / "images.toml"
    path.write_text(re.sub(r"^port = ", 'memory = "8g"\nport = ', IMAGES.read_text(), flags=re.MULTILINE))
    return path


@pytest.fixture(scope="module")
def hub(request: pytest.FixtureRequest, browser: Browser, images: Path) -> Iterator[Hub]:
    with running_hub(browser, IMAGES_FILE=str(images), **MODES[request.param]) as made:
        made.context.add_init_script(WITHOUT_DIRECTORY_PICKER)
        yield made


def in_modes(modes: tuple[object, ...]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("hub", modes, indirect=True, scope="module")


@pytest.fixture(scope="module")
def workspace_id(hub: Hub) -> str:
    (made,) = hub.create("vs code")
    home = hub.home(made)
    (home / "note.txt").touch()
    (home / "page.md").write_text("# A heading\n")
    (home / "inbox").mkdir()
    hub.write_settings(made)
    return made


@pytest.fixture(scope="module")
def ide(hub: Hub, workspace_id: str) -> Page:
    page = hub.open(workspace_id)
    wait_until_ide_ready(page)
    return page


@pytest.fixture(scope="module")
def lab_id(hub: Hub) -> str:
    if not (TOOLS_DIR / "bin" / "jupyterlab").exists():
        pytest.skip(f"JupyterLab is missing below {TOOLS_DIR}: make jupyterlab (from a package index)")
    (made,) = hub.create("jupyterlab", image="jupyterlab")
    write_big_file(hub, made)
    return made


@pytest.fixture(scope="module")
def lab(hub: Hub, lab_id: str) -> Page:
    return hub.open(lab_id)


def write_big_file(hub: Hub, workspace_id: str) -> Path:
    """Write megabytes that all differ. code-server does not compress an mp4."""
    path = hub.home(workspace_id) / "big.mp4"
    random = os.urandom(MIB)
    with path.open("wb") as file:
        for number in range(BIG // MIB):
            file.write(random[number:] + random[:number])
    hub.chown_to_home_owner(workspace_id)
    return path


def wait_for_upload(path: Path) -> None:
    wait_while_growing(lambda: path.stat().st_size if path.exists() else 0, BIG, "the upload")


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def bounded_gateway_memory(hub: Hub) -> Iterator[None]:
    """Fail if the memory of a gateway process grows much during the block."""
    top = psutil.Process(hub.system.pids()["gateway"])
    processes = [top, *top.children(recursive=True)]
    before = [process.memory_info().rss for process in processes]
    peak = list(before)
    done = threading.Event()

    def measure() -> None:
        while not done.wait(0.05):
            for position, process in enumerate(processes):
                peak[position] = max(peak[position], process.memory_info().rss)

    sampler = threading.Thread(target=measure)
    sampler.start()
    try:
        yield
    finally:
        done.set()
        sampler.join()
    growth = max(after - at_first for after, at_first in zip(peak, before, strict=True))
    assert growth < MAX_GROWTH, f"a process of the gateway grew by {growth >> 20} MiB"


@in_modes(PATH_MODE_BY_DEFAULT)
def test_vs_code_has_an_editor_and_a_terminal(hub: Hub, workspace_id: str, ide: Page) -> None:
    home = hub.home(workspace_id)
    run_in_terminal(ide, "echo $((6 * 7)) > answer")
    wait_for(lambda: (home / "answer").exists() and (home / "answer").read_text() == "42\n", "the answer")
    edit_a_file(ide, "note.txt", "typed in the browser")
    wait_for(lambda: (home / "note.txt").read_text() == "typed in the browser", "the saved file")


@in_modes(PATH_MODE_BY_DEFAULT)
def test_vs_code_shows_a_preview(ide: Page) -> None:
    """Open a page inside the IDE that has a service worker."""
    open_file(ide, "page.md")
    ide.locator('.editor-actions [aria-label*="Preview"]').first.click()
    expect(ide.locator("iframe.webview.ready")).to_be_visible()


@pytest.mark.full
@in_modes(BOTH)
def test_vs_code_shows_its_extensions(ide: Page, screenshots: Path, request: pytest.FixtureRequest) -> None:
    """Also accept the message that the marketplace cannot be reached."""
    choose(ide, ">Extensions: Focus on Extensions View", "Extensions")
    view = ide.locator(".extensions-viewlet")
    found = view.locator(".extension-list-item").or_(view.get_by_text("Error while fetching extensions"))
    expect(found.first).to_be_visible()
    ide.screenshot(path=screenshots / f"{request.node.name}.png")


@in_modes(OWN_ORIGINS_BY_DEFAULT)
def test_vs_code_downloads_and_uploads_big_files(hub: Hub, workspace_id: str, ide: Page) -> None:
    """The files pass through VS Code's WebSocket, at a cost that grows with the size."""
    big = write_big_file(hub, workspace_id)
    choose(ide, ">Explorer: Focus on Files Explorer", "Explorer")
    rows = ide.locator(".explorer-folders-view .monaco-list-row")
    with bounded_gateway_memory(hub):
        downloaded = download(ide, rows.filter(has_text=big.name), BIG)
        assert digest(downloaded) == digest(big)

        upload(ide, rows.filter(has_text="inbox"), downloaded)
        uploaded = hub.home(workspace_id) / "inbox" / downloaded.name
        wait_for_upload(uploaded)
    assert digest(uploaded) == digest(downloaded)


@in_modes(OWN_ORIGINS_BY_DEFAULT)
def test_a_notebook_in_jupyterlab_has_a_kernel(
    lab: Page, screenshots: Path, request: pytest.FixtureRequest
) -> None:
    lab.locator('.jp-LauncherCard[data-category="Notebook"]').first.click()
    cell = lab.locator(".jp-Notebook .jp-CodeCell").first
    expect(lab.get_by_role("button", name="| Idle")).to_be_visible()
    source = cell.locator(".cm-content")
    source.click()
    expect(source).to_be_focused()
    lab.keyboard.type("6 * 7")
    expect(source).to_have_text("6 * 7")
    lab.keyboard.press("Shift+Enter")
    expect(cell.locator(".jp-OutputArea-output")).to_have_text("42")
    lab.screenshot(path=screenshots / f"{request.node.name}.png")


@in_modes(OWN_ORIGINS_BY_DEFAULT)
def test_jupyterlab_downloads_and_uploads_big_files(hub: Hub, lab_id: str, lab: Page) -> None:
    home = hub.home(lab_id)
    files = lab.locator(".jp-DirListing-content")
    with bounded_gateway_memory(hub):
        files.get_by_text("big.mp4").click(button="right")
        with lab.expect_download() as download:
            lab.locator(".lm-Menu-item", has_text="Download").first.click()
        downloaded = Path(download.value.path())
        assert digest(downloaded) == digest(home / "big.mp4")

        with lab.expect_file_chooser() as chooser:
            lab.get_by_role("button", name="Upload Files").click()
        chooser.value.set_files(downloaded)
        lab.get_by_role("dialog").get_by_role("button", name="Upload").click()
        uploaded = home / downloaded.name
        wait_for_upload(uploaded)
    assert digest(uploaded) == digest(downloaded)


@in_modes(OWN_ORIGINS_BY_DEFAULT)
def test_vite_on_a_forwarded_port_reloads_what_changed(
    hub: Hub, workspace_id: str, ide: Page, request: pytest.FixtureRequest
) -> None:
    app = hub.home(workspace_id) / "app"
    make_vite_app(app)
    hub.chown_to_home_owner(workspace_id)
    own = "path" not in request.node.callspec.id
    base = "/" if own else f"/w/{workspace_id}/absproxy/{VITE_PORT}/"
    run_in_terminal(ide, f"cd app; node node_modules/vite/bin/vite.js --port {VITE_PORT} --base {base}")
    page = hub.context.new_page()
    host = (
        f"{VITE_PORT}--{workspace_id}.localhost:{hub.system.port}" if own else f"localhost:{hub.system.port}"
    )
    with page.expect_console_message(vite_listens_for_changes):
        page.goto(f"http://{host}{base}")  # until Vite answers, the gateway's page reloads
    shown = page.locator("#shown")
    expect(shown).to_have_text("before")
    page.evaluate("window.isTheSamePage = true")
    (app / "texts.js").write_text("export const texts = 'after'")
    expect(shown).to_have_text("after")
    assert page.evaluate("window.isTheSamePage") is True
    page.close()


def vite_listens_for_changes(message: ConsoleMessage) -> bool:
    """Return whether the page has connected: Vite does not repeat earlier changes."""
    return "[vite] connected." in message.text


def make_vite_app(app: Path) -> None:
    app.mkdir()
    for package in VITE_PACKAGES:
        shutil.copytree(NODE_MODULES / package, app / "node_modules" / package, symlinks=True)
    (app / "index.html").write_text('<p id="shown"></p><script type="module" src="/main.js"></script>')
    (app / "texts.js").write_text("export const texts = 'before'")
    (app / "main.js").write_text(
        "import { texts } from './texts.js'\n"
        "const show = (texts) => (document.querySelector('#shown').textContent = texts)\n"
        "show(texts)\n"
        "import.meta.hot.accept('./texts.js', (changed) => show(changed.texts))\n"
    )
