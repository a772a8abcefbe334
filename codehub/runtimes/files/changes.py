"""Changes of names: delete, move, new directories. Standard library only (see `agent`)."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat

from codehub.runtimes.files.channel import Channel
from codehub.runtimes.files.content import locked, require_match, sync_directory
from codehub.runtimes.files.listing import Scanner
from codehub.runtimes.files.paths import FileTree, Place, facts_at
from codehub.runtimes.files.protocol import (
    DeleteRequest,
    DirectoryRequest,
    FileCode,
    FileRefused,
    MoveRequest,
    to_fields,
)

_MAX_DEPTH = 1000
"""Directories in each other that one delete holds open."""
_RENAME_NOREPLACE = 1


def delete(tree: FileTree, request: DeleteRequest, channel: Channel) -> None:
    with tree.resolve(request.path, follow=False) as place:
        place.require_name()
        with locked(place.parent):
            facts = place.lstat()
            tree.require_not_home(facts)
            require_match(facts, request.if_match)
            if not stat.S_ISDIR(facts.st_mode):
                os.unlink(place.name, dir_fd=place.parent)
            elif not request.recursive:
                os.rmdir(place.name, dir_fd=place.parent)
        if stat.S_ISDIR(facts.st_mode) and request.recursive:
            _Removal(tree, channel).remove(place)
        sync_directory(place.parent)
    channel.send_message(deleted=True)


class _Removal:
    """Removal of a directory with all that is in it, by descriptors, so that no link leads it away."""

    def __init__(self, tree: FileTree, channel: Channel) -> None:
        self._tree = tree
        self._scanner = Scanner(tree, channel)
        self._levels: list[tuple[int, bytes]] = []
        """The open directories, each in the one before, with their names there."""

    def remove(self, place: Place) -> None:
        self._open(place.parent, place.name)
        try:
            while self._levels:
                directory, name = self._levels[-1]
                filled = self._remove_entries(directory)
                if filled is not None:
                    self._open(directory, filled)
                    continue
                self._levels.pop()
                os.close(directory)
                parent = self._levels[-1][0] if self._levels else place.parent
                os.rmdir(name, dir_fd=parent)
        finally:
            for directory, _ in self._levels:
                os.close(directory)

    def _open(self, parent: int, name: bytes) -> None:
        if len(self._levels) == _MAX_DEPTH:
            raise FileRefused(FileCode.INVALID, f"it has more than {_MAX_DEPTH} directories in each other")
        self._levels.append((self._tree.open_directory(parent, name), name))

    def _remove_entries(self, directory: int) -> bytes | None:
        """Remove what can be; return the name of a directory that is not empty."""
        for name in self._scanner.names(directory):
            try:
                os.unlink(name, dir_fd=directory)
            except FileNotFoundError:
                continue
            except IsADirectoryError:
                try:
                    os.rmdir(name, dir_fd=directory)
                except OSError as error:
                    if error.errno != errno.ENOTEMPTY:
                        raise
                    return name
        return None


def move(tree: FileTree, request: MoveRequest, channel: Channel) -> None:
    with (
        tree.resolve(request.path, follow=False) as source,
        tree.resolve(request.to, follow=False) as target,
    ):
        source.require_name()
        target.require_name()
        tree.require_not_home(source.lstat())
        if request.overwrite:
            os.rename(source.name, target.name, src_dir_fd=source.parent, dst_dir_fd=target.parent)
        else:
            _rename_to_free_name(source, target)
        sync_directory(target.parent)
        sync_directory(source.parent)
        channel.send_message(facts=to_fields(facts_at(target)))


def _rename_to_free_name(source: Place, target: Place) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    failed = libc.renameat2(source.parent, source.name, target.parent, target.name, _RENAME_NOREPLACE)
    if not failed:
        return
    number = ctypes.get_errno()
    if number not in (errno.EINVAL, errno.ENOSYS):
        raise OSError(number, os.strerror(number))
    # The filesystem has no such rename, or a directory would move into itself: this one reports it.
    if target.lstat_or_none() is not None:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
    os.rename(source.name, target.name, src_dir_fd=source.parent, dst_dir_fd=target.parent)


def make_directory(tree: FileTree, request: DirectoryRequest, channel: Channel) -> None:
    """Make a directory. With `parents` those on its way too, and it may exist already."""
    mode = 0o777 if request.mode is None else request.mode & 0o7777
    if request.parents:
        _make_parents(tree, request.path)
    with tree.resolve(request.path, follow=request.parents) as place:
        present = place.lstat_or_none()
        is_there = request.parents and present is not None and stat.S_ISDIR(present.st_mode)
        if not is_there:
            os.mkdir(place.name, mode, dir_fd=place.parent)
            if request.mode is not None:  # the umask is not meant
                os.chmod(place.name, mode, dir_fd=place.parent)
            sync_directory(place.parent)
        channel.send_message(facts=to_fields(facts_at(place)), created=not is_there)


def _make_parents(tree: FileTree, path: bytes) -> None:
    parts = path.split(b"/")
    for count in range(1, len(parts)):
        parent = b"/".join(parts[:count])
        if parent:
            with tree.resolve(parent, follow=True) as place, contextlib.suppress(FileExistsError):
                os.mkdir(place.name, dir_fd=place.parent)
