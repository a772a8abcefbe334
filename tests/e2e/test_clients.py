"""Real clients through the gateway, in both of its modes: VS Code, JupyterLab, Vite."""

import contextlib
import hashlib
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from playwright.sync_api import Browser, Locator, Page, expect
from playwright.sync_api import TimeoutError as TooLate

from tests.e2e.conftest import Hub, a_hub
from tests.e2e.test_story import LONG, choose, edit_a_file, ide_is_there, run_in_terminal
from tests.services import TOOLS_DIR, wait_for

IMAGES = Path(__file__).parents[2] / "images" / "images.toml"
MODES = {"own-origins": {}, "path-mode": {"APPS_DOMAIN": ""}}
NODE_MODULES = Path(__file__).parents[2] / "web" / "node_modules"
VITE_PACKAGES = (
    *("vite", "esbuild", "@esbuild", "rollup", "@rollup", "postcss", "nanoid", "picocolors", "source-map-js"),
    *("tinyglobby", "fdir", "picomatch"),
)
VITE_PORT = 5173
MIB = 1 << 20
BIG = {"own-origins": 500 * MIB, "path-mode": int(os.environ.get("CODEHUB_PATH_MODE_MIB", "64")) * MIB}
"""The path mode relays in the same way; 500 works there as well, and costs half a minute."""
VS_CODE_BIG = int(os.environ.get("CODEHUB_VS_CODE_MIB", "8")) * MIB
"""500 works as well, and costs a minute of processor time."""
MOST_GROWTH = 64 * MIB
AS_IN_FIREFOX = "window.showDirectoryPicker = undefined"
"""The picker is a dialog of the system's, which nobody could answer here."""
SETTINGS = {"workbench.startupEditor": "none", "chat.disableAIFeatures": True}

Until = Callable[[Callable[[], object], str], None]


@pytest.fixture(scope="module", params=MODES)
def hub(request: pytest.FixtureRequest, browser: Browser) -> Iterator[Hub]:
    with a_hub(browser, IMAGES_FILE=str(IMAGES), **MODES[request.param]) as made:
        made.context.add_init_script(AS_IN_FIREFOX)
        made.big = BIG[request.param]
        yield made


@pytest.fixture(scope="module")
def workspace_id(hub: Hub) -> str:
    (made,) = hub.create("vs code")
    home = hub.home(made)
    user = home / ".local" / "share" / "code-server" / "User"
    user.mkdir(parents=True, exist_ok=True)
    (user / "settings.json").write_text(json.dumps(SETTINGS))
    (home / "note.txt").touch()
    (home / "inbox").mkdir()
    write_big(home / "big.mp4", VS_CODE_BIG)  # a name that code-server does not compress
    hub.give_to_its_user(made)
    return made


@pytest.fixture(scope="module")
def ide(hub: Hub, workspace_id: str) -> Page:
    page = hub.open(workspace_id)
    ide_is_there(page)
    return page


@pytest.fixture(scope="module")
def lab_id(hub: Hub) -> str:
    if not (TOOLS_DIR / "bin" / "jupyterlab").exists():
        pytest.skip(f"JupyterLab is missing below {TOOLS_DIR}: make jupyterlab (from a package index)")
    (made,) = hub.create("jupyterlab", image="jupyterlab")
    write_big(hub.home(made) / "big.mp4", hub.big)
    hub.give_to_its_user(made)
    return made


@pytest.fixture(scope="module")
def lab(hub: Hub, lab_id: str) -> Page:
    return hub.open(lab_id)


def write_big(path: Path, size: int) -> None:
    """Megabytes that all differ, at the cost of one."""
    random = os.urandom(MIB)
    with path.open("wb") as file:
        for number in range(size // MIB):
            file.write(random[number:] + random[:number])


def has_size(path: Path, size: int) -> bool:
    return path.exists() and path.stat().st_size == size


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def gateway_stays_small(hub: Hub) -> Iterator[None]:
    """While something big passes, no process of the gateway grows by much."""
    top = psutil.Process(hub.system.pids()["gateway"])
    processes = [top, *top.children(recursive=True)]
    before = [process.memory_info().rss for process in processes]
    most = list(before)
    done = threading.Event()

    def look() -> None:
        while not done.wait(0.05):
            for position, process in enumerate(processes):
                most[position] = max(most[position], process.memory_info().rss)

    watch = threading.Thread(target=look)
    watch.start()
    try:
        yield
    finally:
        done.set()
        watch.join()
    growth = max(after - at_first for after, at_first in zip(most, before, strict=True))
    assert growth < MOST_GROWTH, f"a process of the gateway grew by {growth >> 20} MiB"


def test_vs_code_has_an_editor_and_a_terminal(hub: Hub, workspace_id: str, ide: Page, until: Until) -> None:
    home = hub.home(workspace_id)
    run_in_terminal(ide, "echo $((6 * 7)) > answer")
    until(lambda: (home / "answer").exists() and (home / "answer").read_text() == "42\n", "the answer")
    edit_a_file(ide, "note.txt", "typed in the browser")
    until(lambda: (home / "note.txt").read_text() == "typed in the browser", "the saved file")


def test_vs_code_shows_a_preview(hub: Hub, workspace_id: str, ide: Page) -> None:
    """Which is a page of its own inside the IDE, with a service worker."""
    (hub.home(workspace_id) / "page.md").write_text("# A heading\n")
    hub.give_to_its_user(workspace_id)
    choose(ide, "page.md", "page.md")
    expect(ide.locator(".editor-instance .view-line").first).to_be_visible(timeout=LONG)
    ide.locator('.editor-actions [aria-label*="Preview"]').first.click(timeout=LONG)
    expect(ide.locator("iframe.webview.ready")).to_be_visible(timeout=LONG)


def test_vs_code_shows_its_extensions(ide: Page, screenshots: Path, request: pytest.FixtureRequest) -> None:
    """Where the marketplace cannot be reached, the page says so."""
    choose(ide, ">Extensions: Focus on Extensions View", "Extensions")
    view = ide.locator(".extensions-viewlet")
    found = view.locator(".extension-list-item").or_(view.get_by_text("Error while fetching extensions"))
    expect(found.first).to_be_visible(timeout=LONG)
    ide.screenshot(path=screenshots / f"{request.node.name}.png")


def test_big_files_go_down_and_up_by_vs_code(hub: Hub, workspace_id: str, ide: Page, until: Until) -> None:
    """All of it in messages of VS Code's own socket, at a cost in the browser that grows with the size."""
    home = hub.home(workspace_id)
    choose(ide, ">Explorer: Focus on Files Explorer", "Explorer")
    rows = ide.locator(".explorer-folders-view .monaco-list-row")
    with gateway_stays_small(hub):
        downloaded = downloaded_by_vs_code(ide, rows.filter(has_text="big.mp4"))
        assert digest(downloaded) == digest(home / "big.mp4")

        rows.filter(has_text="inbox").click(button="right")
        with ide.expect_file_chooser() as chooser:
            press(ide.get_by_role("menuitem", name="Upload..."))
        chooser.value.set_files(downloaded)
        uploaded = home / "inbox" / downloaded.name
        until(lambda: has_size(uploaded, VS_CODE_BIG), "the upload")
    assert digest(uploaded) == digest(downloaded)


def downloaded_by_vs_code(ide: Page, row: Locator) -> Path:
    """It reads the whole file before the download begins."""
    row.click(button="right")
    with ide.expect_download(timeout=2 * LONG) as download:
        press(ide.get_by_role("menuitem", name="Download..."))
    return Path(download.value.path())


def press(item: Locator) -> None:
    """A menu of VS Code's that has just opened takes no click yet, and stays open."""
    for _ in range(20):
        with contextlib.suppress(TooLate):  # it has closed meanwhile
            item.click(timeout=3000)
        try:
            expect(item).to_be_hidden(timeout=1000)
            return
        except AssertionError:
            continue
    raise AssertionError("the menu stays open")


def test_a_notebook_in_jupyterlab_has_a_kernel(
    lab: Page, screenshots: Path, request: pytest.FixtureRequest
) -> None:
    lab.locator('.jp-LauncherCard[data-category="Notebook"]').first.click(timeout=LONG)
    cell = lab.locator(".jp-Notebook .jp-CodeCell").first
    expect(lab.get_by_role("button", name="| Idle")).to_be_visible(timeout=LONG)
    cell.locator(".cm-content").click()
    lab.keyboard.type("6 * 7")
    lab.keyboard.press("Shift+Enter")
    expect(cell.locator(".jp-OutputArea-output")).to_have_text("42", timeout=LONG)
    lab.screenshot(path=screenshots / f"{request.node.name}.png")


def test_hundreds_of_megabytes_go_down_and_up_by_jupyterlab(
    hub: Hub, lab_id: str, lab: Page, until: Until
) -> None:
    home = hub.home(lab_id)
    files = lab.locator(".jp-DirListing-content")
    with gateway_stays_small(hub):
        files.get_by_text("big.mp4").click(button="right", timeout=LONG)
        with lab.expect_download(timeout=LONG) as download:
            lab.locator(".lm-Menu-item", has_text="Download").first.click()
        downloaded = Path(download.value.path())
        assert digest(downloaded) == digest(home / "big.mp4")

        with lab.expect_file_chooser() as chooser:
            lab.get_by_role("button", name="Upload Files").click()
        chooser.value.set_files(downloaded)
        lab.get_by_role("dialog").get_by_role("button", name="Upload").click()
        uploaded = home / downloaded.name
        until(lambda: has_size(uploaded, hub.big), "the upload")
    assert digest(uploaded) == digest(downloaded)


def start_in_terminal(ide: Page, home: Path, command: str) -> None:
    """A terminal that is still coming up swallows keys: whether it took them shows on the disk."""
    for attempt in range(4):
        begun = home / f"begun-{attempt}"
        run_in_terminal(ide, f"touch ~/{begun.name}; {command}")
        with contextlib.suppress(AssertionError):
            wait_for(begun.exists, "the command to begin", 15)
            return
    raise AssertionError(f"no terminal takes a command: {command}")


def test_vite_on_a_forwarded_port_reloads_what_changed(
    hub: Hub, workspace_id: str, ide: Page, request: pytest.FixtureRequest
) -> None:
    app = hub.home(workspace_id) / "app"
    make_vite_app(app)
    hub.give_to_its_user(workspace_id)
    own = "path" not in request.node.callspec.id
    base = "/" if own else f"/w/{workspace_id}/absproxy/{VITE_PORT}/"
    start_in_terminal(
        ide,
        hub.home(workspace_id),
        f"cd app; node node_modules/vite/bin/vite.js --port {VITE_PORT} --base {base}",
    )
    page = hub.context.new_page()
    host = (
        f"{VITE_PORT}--{workspace_id}.localhost:{hub.system.port}" if own else f"localhost:{hub.system.port}"
    )
    page.goto(f"http://{host}{base}")
    shown = page.locator("#shown")
    expect(shown).to_have_text("before", timeout=LONG)  # until then, the gateway's page asks again by itself
    page.evaluate("window.isTheSamePage = true")
    (app / "words.js").write_text("export const words = 'after'")
    expect(shown).to_have_text("after", timeout=LONG)
    assert page.evaluate("window.isTheSamePage") is True
    page.close()


def make_vite_app(app: Path) -> None:
    app.mkdir()
    for package in VITE_PACKAGES:
        shutil.copytree(NODE_MODULES / package, app / "node_modules" / package, symlinks=True)
    (app / "index.html").write_text('<p id="shown"></p><script type="module" src="/main.js"></script>')
    (app / "words.js").write_text("export const words = 'before'")
    (app / "main.js").write_text(
        "import { words } from './words.js'\n"
        "const show = (words) => (document.querySelector('#shown').textContent = words)\n"
        "show(words)\n"
        "import.meta.hot.accept('./words.js', (changed) => show(changed.words))\n"
    )
