"""Directories as tar archives, without any path that leads out of them."""

import os
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Final

from codehub.client.errors import UnexpectedAnswer
from codehub.client.local_files import NewFile, file_pieces

_BLOCK: Final = 512
_COPY_BYTES: Final = 256 << 10


def tree_size(directory: Path) -> int:
    """Return the bytes of all files below a directory."""
    return sum(facts.st_size for _, facts in _walk(directory) if stat.S_ISREG(facts.st_mode))


def tar_pieces(directory: Path) -> Iterator[bytes]:
    """Yield a directory as a tar archive: files, directories and links; nothing else has content."""
    for path, facts in _walk(directory):
        member = _member(path, path.relative_to(directory), facts)
        if member is None:
            continue
        yield member.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")
        if member.isreg():
            yield from file_pieces(path, member.size)
            yield bytes(-member.size % _BLOCK)
    yield bytes(2 * _BLOCK)


def _walk(directory: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield what is below a directory, each directory before its entries. Links are not followed."""
    for entry in sorted(os.scandir(directory), key=lambda each: each.name):
        facts = entry.stat(follow_symlinks=False)
        yield Path(entry.path), facts
        if stat.S_ISDIR(facts.st_mode):
            yield from _walk(Path(entry.path))


def _member(path: Path, name: Path, facts: os.stat_result) -> tarfile.TarInfo | None:
    member = tarfile.TarInfo(name.as_posix())
    member.mode, member.mtime = stat.S_IMODE(facts.st_mode), int(facts.st_mtime)
    if stat.S_ISREG(facts.st_mode):
        member.size = facts.st_size
    elif stat.S_ISDIR(facts.st_mode):
        member.type = tarfile.DIRTYPE
    elif stat.S_ISLNK(facts.st_mode):
        member.type, member.linkname = tarfile.SYMTYPE, str(path.readlink())
    else:
        return None
    return member


def unpack(archive: BinaryIO, directory: Path) -> None:
    """Unpack an archive of the server into a directory.

    Names that lead out of it are refused, and no file is written through a link, whether the archive has
    it or it was there before. Links are made last, as they are.
    """
    links: list[tarfile.TarInfo] = []
    directories: list[tuple[Path, int]] = []
    try:
        with tarfile.open(fileobj=archive, mode="r:", encoding="utf-8", errors="surrogateescape") as tar:
            for member in tar:
                if member.issym():
                    links.append(member)
                elif member.isdir():
                    path = _make_directory(directory, _parts(member))
                    directories.append((path, member.mode))
                elif member.isreg():
                    _write_file(tar, member, directory)
    except tarfile.TarError as error:
        raise UnexpectedAnswer(f"The server's archive is damaged: {error}.") from error
    for link in links:
        _make_link(directory, link)
    for path, mode in reversed(directories):
        path.chmod(mode & 0o777)


def _parts(member: tarfile.TarInfo) -> tuple[str, ...]:
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts or "\0" in member.name:
        raise UnexpectedAnswer(f"The server's archive has the name {member.name!r}, which leads out of it.")
    return path.parts


def _make_directory(root: Path, parts: tuple[str, ...]) -> Path:
    path = root
    for part in parts:
        path /= part
        if path.is_symlink():
            raise UnexpectedAnswer(
                f"{path} is a link here, and a directory in the workspace. Remove the link first."
            )
        path.mkdir(exist_ok=True)
        if not os.access(path, os.W_OK | os.X_OK):
            path.chmod(stat.S_IMODE(path.stat().st_mode) | 0o700)
    return path


def _write_file(tar: tarfile.TarFile, member: tarfile.TarInfo, root: Path) -> None:
    parts = _parts(member)
    source = tar.extractfile(member)
    if not parts or source is None:
        raise UnexpectedAnswer("The server's archive has a file without a name.")
    new = NewFile.create(_make_directory(root, parts[:-1]) / parts[-1], member.mode, keeps_mode=False)
    try:
        while piece := source.read(_COPY_BYTES):
            new.write(piece)
        new.finish()
    except BaseException:
        new.discard()
        raise
    os.utime(new.path, (member.mtime, member.mtime), follow_symlinks=False)


def _make_link(root: Path, member: tarfile.TarInfo) -> None:
    parts = _parts(member)
    path = _make_directory(root, parts[:-1]) / parts[-1]
    if path.is_symlink() or path.is_file():
        path.unlink()
    path.symlink_to(member.linkname)
