"""Lock of a workspace, with the fence that rejects an earlier leader (ADR 0002)."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from codehub.host.durable_files import read_if_there, write_durably
from codehub.host.file_lock import lock_within
from codehub.storage.errors import StaleEpoch, Unobservable, VolumeBusy
from codehub.storage.installation_marker import check_directory
from codehub.storage.volumes.workspace_directory import WorkspaceDirectory


def lock_workspace(directory: WorkspaceDirectory, installation_id: str, epoch: int, wait: float = 0.0) -> int:
    """Lock a workspace for a leader's epoch, and fence off earlier ones. Return the descriptor."""
    check_directory(directory.root, installation_id)
    directory.ensure()
    fd = lock_within(directory.lock, wait)
    if fd is None:
        raise VolumeBusy(f"a storage job is working on the home of workspace {directory.workspace_id}")
    try:
        _raise_fence(directory, epoch)
    except BaseException:
        os.close(fd)
        raise
    return fd


@contextmanager
def locked_workspace(
    directory: WorkspaceDirectory, installation_id: str, epoch: int, wait: float = 0.0
) -> Iterator[int]:
    """Hold the lock of a workspace, as taken by `lock_workspace`."""
    fd = lock_workspace(directory, installation_id, epoch, wait)
    try:
        yield fd
    finally:
        os.close(fd)


def _raise_fence(directory: WorkspaceDirectory, epoch: int) -> None:
    content = read_if_there(directory.fence)
    if content is not None:
        try:
            newest = int(content)
        except ValueError as error:
            raise Unobservable(f"{directory.fence} does not contain an epoch") from error
        if newest > epoch:
            raise StaleEpoch(epoch, newest)
        if newest == epoch:
            return
    _write_fence(directory.fence, b"%020d\n" % epoch)


def _write_fence(path: Path, content: bytes) -> None:
    """Overwrite the fence in its block: on a full disk, an archive has to start to free space."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        write_durably(path, content)
        return
    try:
        os.pwrite(fd, content, 0)
        os.fsync(fd)
    finally:
        os.close(fd)
