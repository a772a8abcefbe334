"""The directory that the process runtime keeps for one workspace. Standard library only (see `keeper`).

    state.json      who runs here, and how it ended
    output.log      what the IDE printed (output.log.1: before that)
    io/             the only directory the workspace's own user may write; the IDE binds io/ide.sock
    up/             only CodeHub may enter it, and only root may write it: here the gateway connects
    up/ide.sock     a hard link to it, made by us
    up/net.sock     the way into its network (see `door`)
    scratch/        where the keeper mounts what the sandbox has in memory, seen by it alone
    passwd, group   what the sandbox shows as /etc/passwd and /etc/group

The gateway connects to the hard link. If it runs as a user of its own, root gives its group the sockets in
up/, whatever permissions the IDE chose. A workspace could replace io/ide.sock by a symbolic link to a socket
of the host and have the gateway, which has more rights, talk to that; a hard link cannot be talked into it.
Neither path in up/ is longer than the one that the IDE binds: a socket's path has few bytes.
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

LOG_BYTES = 1 << 20
LONGEST_SOCKET_PATH = 107
_LAUNCH_SECONDS = 2.0
_REMOVED = ".deleted-"
_ENTRIES_AT_ONCE = 10_000


class StateCorrupted(Exception):  # noqa: N818 - a fact, not a fault
    """state.json cannot be read."""


class DirectoryGone(Exception):  # noqa: N818 - a fact, not a fault
    """The directory was removed while we waited for it."""


@dataclass(frozen=True)
class ExitRecord:
    code: int
    stopped: bool
    exhausted_memory: int | None = None
    """The cap that it ran into, in bytes."""


@dataclass(frozen=True)
class State:
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
        """Whether the tree may still run; a keeper that has written how it ended is only on its way out."""
        if self.ended is not None:
            return False
        processes = (self.keeper, self.child)
        return self.boot_id == boot_id() and any(p is not None and p.is_alive() for p in processes)


class StateDirectory:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.state_file = path / "state.json"
        self.log_file = path / "output.log"
        self.older_log_file = path / "output.log.1"
        self.io = path / "io"
        self.bound_socket = self.io / "ide.sock"
        self.scratch = path / "scratch"
        self._up = path / "up"
        self.socket = self._up / "ide.sock"
        self.port_broker_socket = self._up / PORT_BROKER_SOCKET
        # Where they were before there was up/: a workspace that has run since then is still found.
        self._older_socket = path / "ide.sock"
        self._older_door = path / "ports.sock"

    @contextlib.contextmanager
    def locked(self) -> Iterator[int | None]:
        """Hold the directory alone; None when someone who lives holds it.

        A look (`is_locked`) also takes the lock, for an instant: so a busy lock is tried again for a while.
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

    def read_state(self) -> State | None:
        try:
            raw = json.loads(self.state_file.read_bytes())
            return State(
                op_id=_text(raw["op_id"]),
                image=_text(raw["image"]),
                ready_path=_text(raw["ready_path"]),
                isolation=_text(raw["isolation"]),
                uid=None if raw["uid"] is None else int(raw["uid"]),
                boot_id=_text(raw["boot_id"]),
                keeper=ProcessId(**raw["keeper"]),
                child=ProcessId(**raw["child"]) if raw["child"] else None,
                ended=ExitRecord(**raw["ended"]) if raw["ended"] else None,
                groups=[_text(group) for group in raw.get("groups", [])],
            )
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, NotADirectoryError) as error:
            raise StateCorrupted(f"{self.state_file} is damaged: {error}") from error

    def write_state(self, state: State) -> None:
        staged = self.path / f".state-{os.getpid()}"
        replace_file(self.state_file, json.dumps(asdict(state)).encode(), staged=staged)

    def prepare(
        self, uid: int | None, traversable: bool, files: dict[str, str], gateway_group: int | None = None
    ) -> None:
        """Clear what an earlier container left, and give the next one its own corner. Only under the lock."""
        self.path.chmod(0o711 if traversable else 0o700)
        for file in (self._older_socket, self._older_door):
            file.unlink(missing_ok=True)
        for corner in (self._up, self.io):
            if corner.exists():
                remove_tree(corner)
            corner.mkdir(mode=0o700)
        self.scratch.mkdir(mode=0o700, exist_ok=True)
        if uid is not None:
            os.chown(self.io, uid, uid)
        for name, text in files.items():
            file = self.path / name
            file.write_text(text)
            file.chmod(0o644)
        if gateway_group is not None:
            self.share(gateway_group)
        with contextlib.suppress(FileNotFoundError):
            self.log_file.replace(self.older_log_file)

    def share(self, gateway_group: int) -> None:
        """Let the gateway's group connect to the sockets that are there, and do nothing else here.

        It may be repeated, and also serves a workspace that started when the gateway was root. Only root may
        write in these directories, so a path still names what it named a moment ago.
        """
        for directory in (self.path, self._up):
            _give_group(directory, gateway_group, 0o010, stat.S_ISDIR)
        for file in (self.socket, self.port_broker_socket, self._older_socket, self._older_door):
            _give_group(file, gateway_group, 0o060, stat.S_ISSOCK)

    def publish_socket(self, gateway_group: int | None = None) -> bool:
        """Make the IDE's socket reachable at `socket`; False while there is none.

        The workspace rules over what it binds (permissions, the number of its links), so that a failure to
        get at it tells that it cannot be reached, and nothing else.
        """
        try:
            if not self._link_socket():
                return False
            if gateway_group is not None:
                self.share(gateway_group)
        except OSError:
            return False
        return True

    def _link_socket(self) -> bool:
        bound = self.bound_socket.lstat()
        if not stat.S_ISSOCK(bound.st_mode):
            return False
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(bound, self.socket.lstat()):
                # Not at once: whoever was told of the older one has been told of this one meanwhile.
                self._older_socket.unlink(missing_ok=True)
                return True
        self._up.mkdir(mode=0o700, exist_ok=True)
        self._adopt_older_door()
        staged = self._up / f".socket-{os.urandom(4).hex()}"
        os.link(self.bound_socket, staged, follow_symlinks=False)
        # The workspace may have swapped the file since the look above: what counts is what was linked.
        if not stat.S_ISSOCK(staged.lstat().st_mode):
            staged.unlink()
            return False
        staged.replace(self.socket)
        return True

    def _adopt_older_door(self) -> None:
        with contextlib.suppress(FileNotFoundError, FileExistsError):
            os.link(self._older_door, self.port_broker_socket)

    def tail(self, lines: int) -> str:
        text = b"".join(_read(file) for file in (self.older_log_file, self.log_file))
        return _last_lines(text, lines)

    def last_output(self, lines: int) -> str:
        """The last lines of the latest run alone."""
        return _last_lines(_read(self.log_file), lines)

    def remove(self) -> bool:
        """Remove the directory; False when someone who lives holds it."""
        try:
            with self.locked() as lock:
                if lock is None:
                    return False
                remove_tree(self._set_aside())
        except (FileNotFoundError, DirectoryGone):
            pass  # someone else has removed it, which is all that was asked for
        return True

    def _set_aside(self) -> Path:
        if self.path.name.startswith(_REMOVED):
            return self.path
        return self.path.rename(self.path.with_name(f"{_REMOVED}{self.path.name}-{os.urandom(4).hex()}"))


def unfinished_removals(root: Path) -> list[StateDirectory]:
    """What a crash left of removals, or what could not be removed."""
    return [StateDirectory(path) for path in root.glob(f"{_REMOVED}*")]


def remove_tree(top: Path) -> None:
    """Remove a tree that a workspace wrote in: it may be of any depth, and without permissions.

    What lies deeper is moved up to the top, so that nothing recurses and no path becomes too long. Everything
    is named by its directory's descriptor: a link in the place of a directory leads nowhere.
    """
    _make_ours(top)
    with _opened(top) as descriptor:
        while entries := _some_entries(descriptor):
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    _dissolve(entry.name, descriptor)
                else:
                    os.unlink(entry.name, dir_fd=descriptor)
    top.rmdir()


def _dissolve(name: str, top: int) -> None:
    _make_ours(name, top)
    with _opened(name, top) as directory:
        while entries := _some_entries(directory):
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    _make_ours(entry.name, directory)
                    deeper = f".deeper-{os.urandom(16).hex()}"
                    os.rename(entry.name, deeper, src_dir_fd=directory, dst_dir_fd=top)
                else:
                    os.unlink(entry.name, dir_fd=directory)
    os.rmdir(name, dir_fd=top)


def _some_entries(directory: int) -> list[os.DirEntry[str]]:
    """As many as fit into memory, however many names a workspace has made; none when there are none left."""
    with os.scandir(directory) as found:
        return list(islice(found, _ENTRIES_AT_ONCE))


def _make_ours(path: Path | str, within: int | None = None) -> None:
    """Root needs no permissions, and anybody else is the workspace's own user."""
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


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a string")
    return value


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except FileNotFoundError:
        return b""


def _last_lines(text: bytes, lines: int) -> str:
    return "\n".join(text.decode(errors="replace").splitlines()[-lines:]) if lines > 0 else ""
