"""The state directory of one workspace. Standard library only (see `keeper`).

    state.json      the processes, and how they ended
    output.log      the output of the IDE (older output: output.log.1)
    io/             the only directory that the workspace's user may write; the IDE binds io/ide.sock
    up/             sockets for the gateway; only CodeHub may enter it, and only root may write to it
    up/ide.sock     a hard link to io/ide.sock
    up/net.sock     the socket of the port broker (see `port_broker`)
    scratch/        mount point of the sandbox's tmpfs directories, in the keeper's mount namespace
    passwd, group   /etc/passwd and /etc/group of the sandbox

The gateway connects to the hard link. If it runs as a separate user (ADR 0028), root gives its
group access to the sockets in up/, whatever permissions the IDE chose. A workspace could replace
io/ide.sock by a symbolic link to a socket of the host, to which the gateway may have more rights; a
hard link cannot be redirected. The paths in up/ are not longer than the one that the IDE binds,
because the length of a socket's path is limited.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path

from codehub.domain.ports import PORT_BROKER_SOCKET
from codehub.host import file_lock
from codehub.host.atomic_files import replace_file
from codehub.host.processes import ProcessId, boot_id

LOG, OLDER_LOG = "output.log", "output.log.1"
LOG_BYTES = 1 << 20
LONGEST_SOCKET_PATH = 107
_LAUNCH_SECONDS = 2.0
_REMOVED = ".deleted-"
_ENTRIES_AT_ONCE = 10_000


class StateCorrupted(Exception):  # noqa: N818 - a fact, not a fault
    """Unreadable state.json."""


class DirectoryGone(Exception):  # noqa: N818 - a fact, not a fault
    """Removal of the directory while this process waited for its lock."""


@dataclass(frozen=True)
class ExitRecord:
    """How the container ended, as state.json records it."""

    code: int
    stopped: bool
    exhausted_memory: int | None = None
    """The memory cap that it reached, in bytes."""


@dataclass(frozen=True)
class KeeperState:
    """Contents of state.json.

    Keepers of earlier versions wrote it too, so fields are never renamed.
    """

    op_id: str
    image: str
    ready_path: str
    isolation: str
    uid: int | None
    boot_id: str
    keeper: ProcessId
    child: ProcessId | None = None
    ended: ExitRecord | None = None
    groups: list[str] = field(default_factory=list)

    def is_alive(self) -> bool:
        """Return whether the tree may still run.

        A keeper that has recorded the end is about to exit.
        """
        if self.ended is not None:
            return False
        processes = (self.keeper, self.child)
        return self.boot_id == boot_id() and any(p is not None and p.is_alive() for p in processes)


class StateDirectory:
    """State directory of one workspace, locked by its keeper."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.state_file = path / "state.json"
        self.log_file = path / LOG
        self.older_log_file = path / OLDER_LOG
        self.io = path / "io"
        self.bound_socket = self.io / "ide.sock"
        self.scratch = path / "scratch"
        self._up = path / "up"
        self.socket = self._up / "ide.sock"
        self.port_broker_socket = self._up / PORT_BROKER_SOCKET
        # Versions without up/ had the sockets here. A workspace that has run since then is still
        # found.
        self._older_socket = path / "ide.sock"
        self._older_port_broker_socket = path / "ports.sock"

    @contextlib.contextmanager
    def locked(self) -> Iterator[int | None]:
        """Lock the directory; yield None if a live keeper holds the lock.

        `is_locked` also takes the lock, for a moment, so a busy lock is retried for a while.
        """
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if not self._lock(descriptor):
                yield None
                return
            if not file_lock.is_file_at(descriptor, self.path):
                raise DirectoryGone(str(self.path))
            yield descriptor
        finally:
            os.close(descriptor)

    def _lock(self, descriptor: int) -> bool:
        deadline = time.monotonic() + _LAUNCH_SECONDS
        while not file_lock.try_lock_descriptor(descriptor):
            if self._is_alive() or time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        return True

    def _is_alive(self) -> bool:
        try:
            state = self.read_state()
        except StateCorrupted:
            return False
        return state is not None and state.is_alive()

    def is_locked(self) -> bool:
        return file_lock.is_locked(self.path)

    def read_state(self) -> KeeperState | None:
        try:
            raw = json.loads(self.state_file.read_bytes())
            return KeeperState(
                op_id=_require_text(raw["op_id"]),
                image=_require_text(raw["image"]),
                ready_path=_require_text(raw["ready_path"]),
                isolation=_require_text(raw["isolation"]),
                uid=None if raw["uid"] is None else int(raw["uid"]),
                boot_id=_require_text(raw["boot_id"]),
                keeper=ProcessId(**raw["keeper"]),
                child=ProcessId(**raw["child"]) if raw["child"] else None,
                ended=ExitRecord(**raw["ended"]) if raw["ended"] else None,
                groups=[_require_text(group) for group in raw.get("groups", [])],
            )
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, NotADirectoryError) as error:
            raise StateCorrupted(f"{self.state_file} is damaged: {error}") from error

    def write_state(self, state: KeeperState) -> None:
        staged = self.path / f".state-{os.getpid()}"
        replace_file(self.state_file, json.dumps(asdict(state)).encode(), staged=staged)

    def prepare(
        self, uid: int | None, traversable: bool, files: dict[str, str], gateway_group: int | None = None
    ) -> None:
        """Remove what an earlier container left, and create directories and files.

        Requires the lock.
        """
        self.path.chmod(0o711 if traversable else 0o700)
        for file in (self._older_socket, self._older_port_broker_socket):
            file.unlink(missing_ok=True)
        for directory in (self._up, self.io):
            if directory.exists():
                remove_tree(directory)
            directory.mkdir(mode=0o700)
        self.scratch.mkdir(mode=0o700, exist_ok=True)
        if uid is not None:
            os.chown(self.io, uid, uid)
        for name, text in files.items():
            file = self.path / name
            file.write_text(text)
            file.chmod(0o644)
        if gateway_group is not None:
            self.share_sockets(gateway_group)
        with contextlib.suppress(FileNotFoundError):
            self.log_file.replace(self.older_log_file)

    def share_sockets(self, gateway_group: int) -> None:
        """Let the gateway's group connect to the existing sockets, and nothing else.

        Repeated calls also cover a workspace that started when the gateway ran as root. Only root
        may write to these directories, so no path can change between check and use.
        """
        for directory in (self.path, self._up):
            _give_group(directory, gateway_group, 0o010, stat.S_ISDIR)
        for file in (
            self.socket,
            self.port_broker_socket,
            self._older_socket,
            self._older_port_broker_socket,
        ):
            _give_group(file, gateway_group, 0o060, stat.S_ISSOCK)

    def publish_socket(self, gateway_group: int | None = None) -> bool:
        """Link the IDE's socket to `socket`; return False while it cannot be reached.

        The workspace controls the permissions and the link count of the socket that it binds, so an
        OSError means only that this IDE cannot be reached.
        """
        try:
            if not self._link_socket():
                return False
            if gateway_group is not None:
                self.share_sockets(gateway_group)
        except OSError:
            return False
        return True

    def _link_socket(self) -> bool:
        bound = self.bound_socket.lstat()
        if not stat.S_ISSOCK(bound.st_mode):
            return False
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(bound, self.socket.lstat()):
                # Only at the second call: by now the gateway uses the new path.
                self._older_socket.unlink(missing_ok=True)
                return True
        self._up.mkdir(mode=0o700, exist_ok=True)
        self._adopt_older_port_broker_socket()
        staged = self._up / f".socket-{os.urandom(4).hex()}"
        os.link(self.bound_socket, staged, follow_symlinks=False)
        # The workspace may have replaced the file since `lstat`, so check what was linked.
        if not stat.S_ISSOCK(staged.lstat().st_mode):
            staged.unlink()
            return False
        staged.replace(self.socket)
        return True

    def _adopt_older_port_broker_socket(self) -> None:
        with contextlib.suppress(FileNotFoundError, FileExistsError):
            os.link(self._older_port_broker_socket, self.port_broker_socket)

    def tail(self, lines: int) -> str:
        """Return the last lines of the output, across runs."""
        text = b"".join(read_if_exists(file) for file in (self.older_log_file, self.log_file))
        return last_lines(text, lines)

    def last_output(self, lines: int) -> str:
        """Return the last lines of the output of the latest run."""
        return last_lines(read_if_exists(self.log_file), lines)

    def remove(self) -> bool:
        """Remove the directory; return False if a live keeper holds it."""
        try:
            with self.locked() as lock:
                if lock is None:
                    return False
                remove_tree(self._set_aside())
        except (FileNotFoundError, DirectoryGone):
            pass  # another process has removed it
        return True

    def _set_aside(self) -> Path:
        if self.path.name.startswith(_REMOVED):
            return self.path
        return self.path.rename(self.path.with_name(f"{_REMOVED}{self.path.name}-{os.urandom(4).hex()}"))


def unfinished_removals(root: Path) -> list[StateDirectory]:
    """Return directories whose removal was interrupted by a crash, or failed."""
    return [StateDirectory(path) for path in root.glob(f"{_REMOVED}*")]


def remove_tree(top: Path) -> None:
    """Remove a tree that a workspace could write to: of any depth, and with any permissions.

    Deeper directories are moved up to the top, so there is no recursion and no path becomes too
    long. All operations use directory descriptors, so that a symbolic link in place of a directory
    is not followed.
    """
    _grant_permissions(top)
    with _opened(top) as descriptor:
        while entries := _some_entries(descriptor):
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    _dissolve(entry.name, descriptor)
                else:
                    os.unlink(entry.name, dir_fd=descriptor)
    top.rmdir()


def _dissolve(name: str, top: int) -> None:
    _grant_permissions(name, top)
    with _opened(name, top) as directory:
        while entries := _some_entries(directory):
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    _grant_permissions(entry.name, directory)
                    deeper = f".deeper-{os.urandom(16).hex()}"
                    os.rename(entry.name, deeper, src_dir_fd=directory, dst_dir_fd=top)
                else:
                    os.unlink(entry.name, dir_fd=directory)
    os.rmdir(name, dir_fd=top)


def _some_entries(directory: int) -> list[os.DirEntry[str]]:
    """Return some entries: a workspace can create more names than fit into memory."""
    with os.scandir(directory) as found:
        return list(islice(found, _ENTRIES_AT_ONCE))


def _grant_permissions(path: Path | str, within: int | None = None) -> None:
    """Grant this process all permissions.

    Root has them anyway; other users own the workspace's files.
    """
    if os.geteuid() != 0:
        os.chmod(path, 0o700, dir_fd=within)


@contextlib.contextmanager
def _opened(path: Path | str, within: int | None = None) -> Iterator[int]:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, dir_fd=within)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _give_group(path: Path, group: int, bits: int, is_expected: Callable[[int], bool]) -> None:
    with contextlib.suppress(FileNotFoundError):
        found = path.lstat()
        if not is_expected(found.st_mode):
            return
        if found.st_gid != group:
            os.chown(path, -1, group)
        if found.st_mode & bits != bits:
            path.chmod(stat.S_IMODE(found.st_mode) | bits)


def _require_text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a string")
    return value


def read_if_exists(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except FileNotFoundError:
        return b""


def last_lines(text: bytes, lines: int) -> str:
    return "\n".join(text.decode(errors="replace").splitlines()[-lines:]) if lines > 0 else ""
