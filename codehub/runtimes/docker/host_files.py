"""What must be as it should be on this machine before a container is made: its user, its home, our files."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import structlog

from codehub.domain.states import ErrorReason
from codehub.domain.workspace_names import as_argument
from codehub.host.atomic_files import replace_file
from codehub.runtimes.base import RuntimeFailure, WorkloadSpec
from codehub.runtimes.block_device import disk_of
from codehub.runtimes.docker.container_config import ContainerSettings, file_places, files, files_of

logger = structlog.get_logger(__name__)


def user_of(spec: WorkloadSpec) -> int:
    """The workspace's own user id under root, else ours, whose the home is."""
    if os.geteuid() != 0:
        return os.geteuid()
    if not spec.uid:
        message = "under root a workspace needs a user id of its own, and it may not be root's"
        raise RuntimeFailure(ErrorReason.ActionFailed, message)
    return spec.uid


def disk_of_home(spec: WorkloadSpec) -> str | None:
    """Return the device whose bandwidth the image limits, if it does."""
    if spec.image.disk_bandwidth is None:
        return None
    disk = disk_of(spec.home)
    if disk is None:
        logger.warning(
            "the disk bandwidth is not limited: the home is on no single disk", id=spec.workspace_id
        )
        return None
    return disk.device


def check(spec: WorkloadSpec) -> None:
    if spec.image.docker is None:
        message = f"image {spec.image.name!r} has no 'docker' key: the docker runtime cannot start it"
        raise RuntimeFailure(ErrorReason.ActionFailed, message)
    if spec.home.is_symlink() or not spec.home.is_dir():
        message = f"the home {spec.home} is missing; a start does not make one"
        raise RuntimeFailure(ErrorReason.ContainerWithoutVolume, message)


def prepare(spec: WorkloadSpec, setting: ContainerSettings) -> None:
    """The home belongs to the container's user, and the files that are mounted are there."""
    if spec.home.lstat().st_uid != setting.uid:
        os.chown(spec.home, setting.uid, setting.uid, follow_symlinks=False)
    texts = files(setting.uid, spec.image.port, as_argument(spec.name, spec.workspace_id))
    for target, place in file_places(setting.root, spec.workspace_id).items():
        place.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        if not place.exists() or place.read_text() != texts[target]:
            staged = place.with_name(f".{place.name}-{os.getpid()}")
            replace_file(place, texts[target].encode(), staged=staged, mode=0o644)


def prepared(root: Path) -> set[str]:
    """The workspaces that files are kept for."""
    return {entry.name for entry in root.iterdir()} if root.exists() else set()


def forget(root: Path, workspace_id: str) -> None:
    """What cannot be removed harms nobody: the next tidying up tries again."""
    shutil.rmtree(files_of(root, workspace_id), ignore_errors=True)
