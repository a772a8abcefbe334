"""How a process workspace is walled in: the command line around the IDE's own command."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from codehub.domain.images import Image, expand_command
from codehub.runtimes.base import WorkloadSpec
from codehub.runtimes.directory import Directory
from codehub.runtimes.leftovers import WORKSPACE_VARIABLE, Isolation

HOME = "/home/coder"
TOOLS = "/opt/codehub"
SOCKET_DIRECTORY = "/run/codehub"
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
BWRAP_DEPTH = 2
"""bwrap's own two processes (outside, and as PID 1 inside) stand between the keeper and the IDE."""

_IN_HOME = ("/bin/sh", "-c", 'cd "$HOME" && unset OLDPWD && exec "$@"', "codehub")
"""Only the workspace's own user may enter its home: bwrap, without root's capabilities, could not."""

_PROBE_UID = 65534
_PROBE_SECONDS = 20.0


@dataclass(frozen=True)
class Command:
    """What the keeper runs, and the files it makes first."""

    argv: list[str]
    env: dict[str, str]
    cwd: str
    umask: int
    spare_depth: int
    files: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Walls:
    """What this machine can put around a workspace, found out once."""

    isolation: Isolation
    bwrap: str | None
    setpriv: str | None
    why_not_better: str


async def find_walls() -> Walls:
    """Try the strongest isolation for real; a bwrap that is installed but may not do its work is no wall."""
    is_root = os.geteuid() == 0
    bwrap, setpriv = shutil.which("bwrap"), shutil.which("setpriv")
    if bwrap is None:
        trouble = "bubblewrap is missing (install it, on Debian: apt-get install bubblewrap)"
    else:
        failure = await _try(bwrap, setpriv, is_root) if setpriv or not is_root else "setpriv is missing"
        if failure is None:
            return Walls(Isolation.SANDBOX, bwrap, setpriv, "")
        trouble = f"bubblewrap does not work here ({failure})"
    return Walls(Isolation.USER if is_root else Isolation.NONE, None, setpriv, trouble)


async def _try(bwrap: str, setpriv: str | None, is_root: bool) -> str | None:
    argv = [bwrap, *_namespaces("codehub-probe"), *_system()]
    argv += [*_capabilities(), "--", *_drop(setpriv, _PROBE_UID if is_root else None), "/bin/true"]
    process = await asyncio.create_subprocess_exec(
        *argv,
        env={"PATH": SYSTEM_PATH},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(_PROBE_SECONDS):
            output, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        return f"no answer within {_PROBE_SECONDS:g} s"
    if process.returncode == 0:
        return None
    return output.decode(errors="replace").strip() or f"exit code {process.returncode}"


def sandboxed(walls: Walls, spec: WorkloadSpec, directory: Directory, tools: Path, data_dir: Path) -> Command:
    """In namespaces of its own: it sees the system read-only, its home, its socket directory, the tools."""
    assert walls.bwrap is not None and spec.image.process is not None
    uid = os.geteuid() if spec.uid is None else spec.uid
    command = expand_command(
        spec.image.process,
        socket=f"{SOCKET_DIRECTORY}/{directory.bound_socket.name}",
        home=HOME,
        workspace_id=spec.workspace_id,
    )
    argv = [
        walls.bwrap,
        *_namespaces(f"codehub-ws-{spec.workspace_id}"),
        *_system(spec.image),
        *_hidden(data_dir),
        *("--ro-bind", str(directory.path / "passwd"), "/etc/passwd"),
        *("--ro-bind", str(directory.path / "group"), "/etc/group"),
        *_tools(tools),
        *("--bind", str(directory.io), SOCKET_DIRECTORY),
        *("--bind", str(spec.home), HOME),
        *_capabilities(),
        *("--", *_drop(walls.setpriv, spec.uid), *_IN_HOME, *command),
    ]
    files = {
        "passwd": f"root:x:0:0:root:/root:/usr/sbin/nologin\ncoder:x:{uid}:{uid}::{HOME}:/bin/bash\n"
        "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
        "group": f"root:x:0:\ncoder:x:{uid}:\nnogroup:x:65534:\n",
    }
    return Command(argv, _environment(HOME, f"{TOOLS}/bin", spec), "/", 0o022, BWRAP_DEPTH, files)


def unsandboxed(walls: Walls, spec: WorkloadSpec, directory: Directory, tools: Path) -> Command:
    """In the host's own namespaces: as a user of its own under root, else with no wall at all."""
    assert spec.image.process is not None
    home = str(spec.home)
    command = expand_command(
        spec.image.process, socket=str(directory.bound_socket), home=home, workspace_id=spec.workspace_id
    )
    argv = [*_drop(walls.setpriv, spec.uid, "--pdeathsig", "KILL"), *command]
    return Command(argv, _environment(home, str(tools / "bin"), spec), home, 0o077, spare_depth=0)


def _environment(home: str, tools_bin: str, spec: WorkloadSpec) -> dict[str, str]:
    return {
        "PATH": f"{tools_bin}:{SYSTEM_PATH}",
        "HOME": home,
        "USER": "coder",
        "LOGNAME": "coder",
        "LANG": "C.UTF-8",
        "SHELL": "/bin/bash",
        WORKSPACE_VARIABLE: spec.workspace_id,
    }


def _namespaces(hostname: str) -> list[str]:
    """`--die-with-parent` ties the sandbox to its keeper, which is tied to nobody."""
    return [
        *("--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"),
        *("--die-with-parent", "--new-session", "--hostname", hostname[:64]),
    ]


def _system(image: Image | None = None) -> list[str]:
    """The host's programs, read-only, and private places for everything that is written."""
    arguments = ["--ro-bind", "/usr", "/usr", "--ro-bind", "/etc", "/etc"]
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        path = Path("/") / name
        if path.is_symlink():
            arguments += ["--symlink", str(path.readlink()), str(path)]
        elif path.is_dir():
            arguments += ["--ro-bind", str(path), str(path)]
    arguments += ["--proc", "/proc", "--dev", "/dev"]
    for place in ("/home", "/run", "/var", TOOLS):
        arguments += _made(Path(place))
    size = [] if image is None else ["--size", str(image.memory_bytes)]
    for scratch in ("/tmp", "/var/tmp", "/dev/shm"):  # noqa: S108 - the sandbox's own
        arguments += ["--perms", "1777", *size, "--tmpfs", scratch]
    return [*arguments, *_name_resolution()]


def _name_resolution() -> list[str]:
    """/etc/resolv.conf is often a link into /run, which the sandbox does not see."""
    resolver = Path("/etc/resolv.conf").resolve()
    if resolver.is_relative_to("/etc") or not resolver.is_file():
        return []
    return [*_made(resolver.parent), "--ro-bind", str(resolver), str(resolver)]


def _made(directory: Path) -> list[str]:
    """Directories on the way that bwrap makes unasked are for root alone, so each is asked for."""
    way = [*reversed(directory.parents), directory][1:]
    return [part for step in way for part in ("--dir", str(step))]


def _hidden(data_dir: Path) -> list[str]:
    """CodeHub's own files, should they lie in a directory that the sandbox sees."""
    candidates = (data_dir.resolve(), Path("/etc/codehub"))
    visible = [path for path in candidates if path.is_dir() and _lies_in(path, ("/usr", "/etc"))]
    return [part for path in visible for part in ("--tmpfs", str(path))]


def _lies_in(path: Path, roots: Sequence[str]) -> bool:
    return any(path.is_relative_to(root) for root in roots)


def _tools(tools: Path) -> list[str]:
    """Only what the installer makes; whatever else a tools directory holds is no workspace's business."""
    arguments: list[str] = []
    for pattern in ("bin", "node-*", "code-server-*"):
        for path in sorted(tools.glob(pattern)):
            arguments += ["--ro-bind", str(path), f"{TOOLS}/{path.name}"]
    return arguments


def _capabilities() -> list[str]:
    """Under root bwrap keeps what `setpriv` needs to change the user, and `setpriv` drops that too."""
    if os.geteuid() != 0:
        return ["--cap-drop", "ALL"]
    kept = ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP")
    return ["--cap-drop", "ALL", *(part for capability in kept for part in ("--cap-add", capability))]


def _drop(setpriv: str | None, uid: int | None, *extra: str) -> list[str]:
    """Lose every privilege for good. `setpriv` is named by its path: the workspace's PATH is not asked."""
    if setpriv is None:
        return []
    argv = [setpriv, "--no-new-privs", *extra]
    if uid is not None:
        argv += ["--reuid", str(uid), "--regid", str(uid), "--clear-groups"]
        argv += ["--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all"]
    return [*argv, "--"]
