"""Command lines that run an IDE in a sandbox (bubblewrap), or without one."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from codehub.domain.images import expand_command
from codehub.domain.workspace_names import as_host_name
from codehub.runtimes.base import WorkloadSpec
from codehub.runtimes.process import tmpfs
from codehub.runtimes.process.cgroup_caps import NO_CGROUPS, Cgroups
from codehub.runtimes.process.network import RESOLVER
from codehub.runtimes.process.stale_processes import WORKSPACE_VARIABLE, Isolation
from codehub.runtimes.process.state_directory import StateDirectory

HOME = "/home/coder"
TOOLS = "/opt/codehub"
SOCKET_DIRECTORY = "/run/codehub"
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
BWRAP_DEPTH = 2
"""Between the keeper and the IDE are two processes of bwrap: one outside, and PID 1 inside."""

_IN_HOME = ("/bin/sh", "-c", 'cd "$HOME" && unset OLDPWD && exec "$@"', "codehub")
"""Only the workspace's user may enter its home. bwrap has dropped root's capabilities, so it could
not."""

_REST_READ_ONLY = ("--remount-ro", "/dev", "--remount-ro", "/")
"""bwrap creates these directories in memory, without a limit. Without root the workspace owns them."""

_PROBE_UID = 65534
_RESOLV_CONF = Path("/etc/resolv.conf")
_CONFIGURATION = ("/etc", "/usr/local/etc")
_SERVICES = ("/etc/codehub", "/etc/default", "/etc/environment", "/etc/environment.d", "/etc/systemd")
"""Configuration of services, CodeHub included, often with credentials that everybody may read."""


@dataclass(frozen=True)
class Command:
    """A program for the keeper to run, and files that it writes first."""

    argv: list[str]
    env: dict[str, str]
    cwd: str
    umask: int
    sandbox_depth: int
    files: dict[str, str] = field(default_factory=dict)
    options: list[str] = field(default_factory=list)
    """Options of bwrap that name host paths. They stay off its command line, which the workspace
    can read."""


@dataclass(frozen=True)
class IsolationBarriers:
    """Isolation that this machine supports, probed once."""

    isolation: Isolation
    bwrap: str | None
    setpriv: str | None
    why_not_better: str = ""
    cgroups: Cgroups = NO_CGROUPS
    slirp: str | None = None
    """slirp4netns, for a network per workspace. Without it workspaces are in the host's network."""
    why_no_network: str = ""
    seccomp: str = ""
    """The seccomp filter in base64, or empty for none."""
    why_no_seccomp: str = ""


def check_command(bwrap: str, setpriv: str | None, *, own_network: bool) -> list[str]:
    """Return a command that runs `true` in a minimal sandbox."""
    uid = _PROBE_UID if os.geteuid() == 0 else None
    argv = [bwrap, *_namespaces("codehub-probe", own_network), *_system(), *_scratch()]
    return [*argv, *_capabilities(), "--", *_drop_privileges(setpriv, uid), "/bin/true"]


def sandboxed_command(
    barriers: IsolationBarriers,
    spec: WorkloadSpec,
    directory: StateDirectory,
    tools: Path,
    data_dir: Path,
    secrets: Sequence[Path] = (),
) -> Command:
    """Return the command for a sandbox.

    It sees a read-only system, its home, the directory of its socket, and the tools.
    """
    assert barriers.bwrap is not None and spec.image.process is not None
    uid = os.geteuid() if spec.uid is None else spec.uid
    command = expand_command(
        spec.image.process,
        socket=f"{SOCKET_DIRECTORY}/{directory.bound_socket.name}",
        home=HOME,
        workspace_id=spec.workspace_id,
        name=spec.name,
    )
    options = [
        *_namespaces(as_host_name(spec.name, spec.workspace_id), barriers.slirp is not None),
        *_system(),
        *_scratch(spec.image.memory_bytes, directory.scratch),
        *_hidden(data_dir, secrets),
        *_name_resolution(directory.path / "resolv.conf" if barriers.slirp else None),
        *("--ro-bind", str(directory.path / "passwd"), "/etc/passwd"),
        *("--ro-bind", str(directory.path / "group"), "/etc/group"),
        *_tools(tools),
        *("--bind", str(directory.io), SOCKET_DIRECTORY),
        *("--bind", str(spec.home), HOME),
        *_REST_READ_ONLY,
        *_capabilities(),
    ]
    argv = [barriers.bwrap, "--", *_drop_privileges(barriers.setpriv, spec.uid), *_IN_HOME, *command]
    files = {
        "passwd": f"root:x:0:0:root:/root:/usr/sbin/nologin\ncoder:x:{uid}:{uid}::{HOME}:/bin/bash\n"
        "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
        "group": f"root:x:0:\ncoder:x:{uid}:\nnogroup:x:65534:\n",
        "resolv.conf": _resolv_conf(),
    }
    environment = _environment(HOME, f"{TOOLS}/bin", spec)
    return Command(argv, environment, "/", 0o022, BWRAP_DEPTH, files, options)


def unsandboxed_command(
    barriers: IsolationBarriers, spec: WorkloadSpec, directory: StateDirectory, tools: Path
) -> Command:
    """Return the command for the host's namespaces.

    Under root a separate user is the only isolation.
    """
    assert spec.image.process is not None
    home = str(spec.home)
    command = expand_command(
        spec.image.process,
        socket=str(directory.bound_socket),
        home=home,
        workspace_id=spec.workspace_id,
        name=spec.name,
    )
    argv = [*_drop_privileges(barriers.setpriv, spec.uid, "--pdeathsig", "KILL"), *command]
    return Command(argv, _environment(home, str(tools / "bin"), spec), home, 0o077, sandbox_depth=0)


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


def _namespaces(hostname: str, own_network: bool) -> list[str]:
    """Return the options for namespaces. `--die-with-parent` ends the sandbox with its keeper.

    The keeper creates the network. Without root it comes with a user namespace in which bwrap is
    root: a second one inside gives the workspace our own user again, without rights over its
    network.
    """
    return [
        *("--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"),
        *("--die-with-parent", "--new-session", "--hostname", hostname),
        *(_inner_user() if own_network and os.geteuid() != 0 else ()),
    ]


def _inner_user() -> list[str]:
    return ["--unshare-user", "--uid", str(os.geteuid()), "--gid", str(os.getegid())]


def _system() -> list[str]:
    """Return mounts of the host's programs, read-only, and of empty private directories."""
    arguments = ["--ro-bind", "/usr", "/usr", "--ro-bind", "/etc", "/etc"]
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        path = Path("/") / name
        if path.is_symlink():
            arguments += ["--symlink", str(path.readlink()), str(path)]
        elif path.is_dir():
            arguments += ["--ro-bind", str(path), str(path)]
    arguments += ["--proc", "/proc", "--dev", "/dev"]
    for directory in ("/home", "/run", "/var", TOOLS):
        arguments += _dir_options(Path(directory))
    return arguments


def _scratch(memory_bytes: int | None = None, directory: Path | None = None) -> list[str]:
    """Return tmpfs mounts: the keeper's, or bwrap's own if the keeper could not mount any."""
    arguments: list[str] = []
    for path in tmpfs.PARTS:
        size = [] if memory_bytes is None else ["--size", str(tmpfs.size_of(path, memory_bytes))]
        arguments += ["--perms", "1777", *size, "--tmpfs", path]
        if directory is not None:
            arguments += ["--bind-try", str(tmpfs.source_of(path, directory)), path]
    return arguments


def _name_resolution(ours: Path | None) -> list[str]:
    """Mount the target of /etc/resolv.conf.

    This is often a link into /run, which the sandbox does not show.
    """
    resolver = _RESOLV_CONF.resolve()
    is_in_etc = resolver.is_relative_to("/etc")
    if not resolver.is_file() or (is_in_etc and ours is None):
        return []
    parents = [] if is_in_etc else _dir_options(resolver.parent)
    return [*parents, "--ro-bind", str(ours or resolver), str(resolver)]


def _resolv_conf() -> str:
    """Return the host's resolv.conf, with the resolver of the workspace's network."""
    try:
        lines = _RESOLV_CONF.read_text(errors="replace").splitlines()
    except FileNotFoundError:
        lines = []
    kept = [line for line in lines if line.split()[:1] in (["search"], ["domain"], ["options"])]
    return "\n".join([f"nameserver {RESOLVER}", *kept, ""])


def _dir_options(directory: Path) -> list[str]:
    """Return options that create every directory of a path.

    Those that bwrap creates implicitly are accessible to root only.
    """
    path = [*reversed(directory.parents), directory][1:]
    return [part for step in path for part in ("--dir", str(step))]


def _hidden(data_dir: Path, secrets: Sequence[Path]) -> list[str]:
    """Hide CodeHub's files and the configuration of services, if the sandbox would show them.

    Without root workspaces are CodeHub's own user, so files that are not readable for everybody are
    hidden too.
    """
    private = [] if os.geteuid() == 0 else [path for root in _CONFIGURATION for path in _private(root)]
    candidates = [path.resolve() for path in (data_dir, *map(Path, _SERVICES), *secrets)] + private
    visible = [path for path in candidates if _is_in(path, ("/usr", "/etc"))]
    directories = [path for path in visible if path.is_dir()]
    files = [path for path in visible if path.is_file() and not _is_in(path, directories)]
    return [
        *(part for path in directories for part in ("--tmpfs", str(path), "--remount-ro", str(path))),
        *(part for path in files for part in ("--ro-bind", os.devnull, str(path))),
    ]


def _private(root: str) -> Iterator[Path]:
    """Yield files and whole directories below that we may read and others may not."""
    for parent, directories, files in os.walk(root):
        closed = [name for name in directories if _is_closed(Path(parent, name))]
        directories[:] = [name for name in directories if name not in closed]
        yield from (Path(parent, name) for name in closed)
        yield from (path for name in files if _is_ours_alone(path := Path(parent, name), stat.S_IROTH))


def _is_closed(directory: Path) -> bool:
    """Return whether others may not enter it. If we cannot list it, treat it as closed."""
    return _is_ours_alone(directory, stat.S_IXOTH) or _can_only_be_entered(directory)


def _can_only_be_entered(directory: Path) -> bool:
    return not directory.is_symlink() and os.access(directory, os.X_OK) and not os.access(directory, os.R_OK)


def _is_ours_alone(path: Path, permission: int) -> bool:
    try:
        mode = path.lstat().st_mode
    except OSError:
        return False
    is_plain = stat.S_ISREG(mode) or stat.S_ISDIR(mode)
    return is_plain and not mode & permission and os.access(path, permission)


def _is_in(path: Path, roots: Sequence[Path | str]) -> bool:
    return any(path.is_relative_to(root) for root in roots)


def _tools(tools: Path) -> list[str]:
    """Mount only what the installer creates.

    Workspaces need nothing else of the tools directory.
    """
    arguments: list[str] = []
    for pattern in ("bin", "node-*", "code-server-*"):
        for path in sorted(tools.glob(pattern)):
            arguments += ["--ro-bind", str(path), f"{TOOLS}/{path.name}"]
    return arguments


def _capabilities() -> list[str]:
    """Drop capabilities.

    Under root bwrap keeps those that `setpriv` needs, and `setpriv` drops them as well.
    """
    if os.geteuid() != 0:
        return ["--cap-drop", "ALL"]
    kept = ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP")
    return ["--cap-drop", "ALL", *(part for capability in kept for part in ("--cap-add", capability))]


def _drop_privileges(setpriv: str | None, uid: int | None, *extra: str) -> list[str]:
    """Drop all privileges for good.

    `setpriv` is an absolute path, because PATH is the workspace's.
    """
    if setpriv is None:
        return []
    argv = [setpriv, "--no-new-privs", *extra]
    if uid is not None:
        argv += ["--reuid", str(uid), "--regid", str(uid), "--clear-groups"]
        argv += ["--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all"]
    return [*argv, "--"]
