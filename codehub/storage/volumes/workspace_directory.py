"""Files of one volume, and the rules by which they change. Callers hold the workspace's lock.

A volume is ready if and only if `home` and `.marker` both exist (ADR 0002). The marker is written
before the home is renamed into place, and removed after the home has been renamed away. So a crash
at any point leaves either a ready volume or none, and never a home with the marker of another.
"""

import errno
import json
import os
import stat
from dataclasses import asdict, dataclass
from pathlib import Path

from codehub.domain.home_keys import home_store_key, parse_home_store_key
from codehub.domain.observation import Generation, VolumeFact
from codehub.host.durable_files import fsync_path, make_directory, read_if_there, write_durably
from codehub.storage.errors import InvalidKey
from codehub.storage.ids import checked_id

LEFTOVER_KINDS = ("staging", "deleted", "aside")

# Each workspace runs under its own uid, and needs access to its home but to nothing else.
_DIRECTORY_MODE = 0o711


@dataclass(frozen=True)
class WorkspaceDirectory:
    """Directory of a workspace: `{root}/users/{user_id}/workspaces/{workspace_id}`."""

    root: Path
    user_id: str
    workspace_id: str

    @classmethod
    def of_key(cls, root: Path, key: str) -> "WorkspaceDirectory":
        """Return the directory for a home_store_key; raise InvalidKey for anything else."""
        try:
            return cls(root, *parse_home_store_key(key))
        except ValueError as error:
            raise InvalidKey(str(error)) from error

    @property
    def home_store_key(self) -> str:
        return home_store_key(self.user_id, self.workspace_id)

    @property
    def path(self) -> Path:
        return self.root / "users" / self.user_id / "workspaces" / self.workspace_id

    @property
    def home(self) -> Path:
        return self.path / "home"

    @property
    def marker(self) -> Path:
        return self.path / ".marker"

    @property
    def lock(self) -> Path:
        return self.path / ".lock"

    @property
    def fence(self) -> Path:
        return self.path / ".fence"

    def staging(self, op_id: str) -> Path:
        return self.path / f".staging-{checked_id(op_id)}"

    def leftovers(self, kind: str) -> list[Path]:
        """Return what earlier attempts left: kind is `staging`, `deleted` or `aside`."""
        return sorted(self.path.glob(f".{kind}-*"))

    def all_leftovers(self) -> list[Path]:
        return [path for kind in LEFTOVER_KINDS for path in self.leftovers(kind)]

    def ensure(self) -> None:
        make_directory(self.path, _DIRECTORY_MODE)

    def observe(self) -> VolumeFact | None:
        """Return the state of the home, or None if there is none.

        The caller needs no lock: if the marker is missing, the home is checked again.
        """
        if not self._home_exists():
            return None
        content = read_if_there(self.marker)
        generation = None if content is None else parse_marker(content)
        if generation is None and not self._home_exists():
            return None
        return VolumeFact(generation)

    def _home_exists(self) -> bool:
        try:
            mode = self.home.lstat().st_mode
        except FileNotFoundError:
            return False
        if not stat.S_ISDIR(mode):
            raise NotADirectoryError(errno.ENOTDIR, "the home is not a directory", str(self.home))
        return True

    def swap_in(self, prepared: Path, generation: Generation) -> None:
        """Make a prepared directory the home; raise FileExistsError if there is one already."""
        if self._home_exists():
            raise FileExistsError(f"{self.home} is already there")
        write_durably(self.marker, json.dumps(asdict(generation)).encode())
        prepared.rename(self.home)
        fsync_path(self.path)

    def set_aside(self, op_id: str) -> Path:
        """Keep a home that is not the workspace's under another name, as it may be valuable."""
        return self._move_home(f".aside-{checked_id(op_id)}")

    def move_to_deleted(self, generation: Generation | None) -> Path:
        """Rename the home, so that there is no volume any longer, but a tree to remove."""
        return self._move_home(f".deleted-{checked_id(generation.op_id if generation else 'unmarked')}")

    def _move_home(self, name: str) -> Path:
        target = self.path / name
        number = 1
        while target.exists() or target.is_symlink():
            number += 1
            target = self.path / f"{name}-{number}"
        self.home.rename(target)
        fsync_path(self.path)
        self.remove_marker()
        return target

    def remove_marker(self) -> None:
        """Remove the marker of a home that no longer exists."""
        self.marker.unlink(missing_ok=True)
        fsync_path(self.path)


def parse_marker(content: bytes) -> Generation | None:
    """Return the generation that a marker names, or None if the marker is malformed."""
    try:
        fields = json.loads(content)
        op_id, archive_key = fields["op_id"], fields["archive_key"]
    except (ValueError, KeyError, TypeError):
        return None
    if isinstance(op_id, str) and (archive_key is None or isinstance(archive_key, str)):
        return Generation(op_id, archive_key)
    return None


def make_private_directory(path: Path, uid: int | None) -> None:
    """Make an empty directory that only a workspace's user can read.

    Only root can give it to that user.
    """
    path.mkdir(mode=0o700)
    path.chmod(0o700)
    if uid is not None and os.geteuid() == 0:
        os.chown(path, uid, uid)
