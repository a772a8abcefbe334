"""Preparations on this machine for a container: its user, its home, and files for it."""

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
from codehub.runtimes.docker.container_config import (
    ContainerSettings,
    container_files,
    file_paths,
    files_directory,
)

logger = structlog.get_logger(__name__)


def user_of(spec: WorkloadSpec) -> int:
    """Return the workspace's own user id under root, otherwise ours, which owns the home."""
    if os.geteuid() != 0:
        return os.geteuid()
    if not spec.uid:
        message = "under root a workspace needs its own user id, and it must not be 0"
        raise RuntimeFailure(ErrorReason.ActionFailed, message)
    return spec.uid


def disk_of_home(spec: WorkloadSpec) -> str | None:
    """Return the device of the home, if the image limits its bandwidth."""
    if spec.image.disk_bandwidth is None:
        return None
    disk = disk_of(spec.home)
    if disk is None:
        logger.warning(
            "the disk bandwidth is not limited: the home is not on a single disk", id=spec.workspace_id
        )
        return None
    return disk.device


def check_home_and_image(spec: WorkloadSpec) -> None:
    if spec.image.docker is None:
        message = f"image {spec.image.name!r} has no 'docker' key: the docker runtime cannot start it"
        raise RuntimeFailure(ErrorReason.ActionFailed, message)
    if spec.home.is_symlink() or not spec.home.is_dir():
        message = f"the home {spec.home} is missing, and a start does not create one"
        raise RuntimeFailure(ErrorReason.ContainerWithoutVolume, message)


def prepare(spec: WorkloadSpec, settings: ContainerSettings) -> None:
    """Give the home to the container's user, and write the files that are mounted."""
    if spec.home.lstat().st_uid != settings.uid:
        os.chown(spec.home, settings.uid, settings.uid, follow_symlinks=False)
    texts = container_files(settings.uid, spec.image.port, as_argument(spec.name, spec.workspace_id))
    for target, path in file_paths(settings.root, spec.workspace_id).items():
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        if not path.exists() or path.read_text() != texts[target]:
            staged = path.with_name(f".{path.name}-{os.getpid()}")
            replace_file(path, texts[target].encode(), staged=staged, mode=0o644)


def workspaces_with_files(root: Path) -> set[str]:
    """Return the workspaces that have files here."""
    return {entry.name for entry in root.iterdir()} if root.exists() else set()


def remove(root: Path, workspace_id: str) -> None:
    """Remove the files of a workspace. Errors are ignored: the next cleanup tries again."""
    shutil.rmtree(files_directory(root, workspace_id), ignore_errors=True)
