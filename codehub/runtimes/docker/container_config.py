"""What a workspace's container is made of: its name, labels and configuration. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from codehub.domain.images import Image
from codehub.domain.workspace_names import as_host_name
from codehub.runtimes.base import WorkloadSpec
from codehub.runtimes.docker import seccomp
from codehub.runtimes.open_files import open_files
from codehub.runtimes.process.stale_processes import WORKSPACE_VARIABLE
from codehub.runtimes.process.tmpfs import tmpfs_options
from codehub.runtimes.seccomp import machine

HOME = "/home/coder"
PASSWD, GROUP = "/etc/passwd", "/etc/group"
CODE_SERVER_CONFIG = "/etc/codehub/code-server.yaml"
_NANO = 1_000_000_000
_OOM_SCORE_ADJUSTMENT = 500
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - the container's own
_LOG_OPTIONS = {"max-size": "1m", "max-file": "2", "compress": "false"}
"""Compressing what a flood fills within a second would only cost more."""


class Label(StrEnum):
    INSTALLATION = "codehub.installation"
    WORKSPACE = "codehub.workspace"
    OP_ID = "codehub.op-id"
    CONFIG = "codehub.config"
    PORT = "codehub.port"
    READY_PATH = "codehub.ready-path"


def name_of(workspace_id: str) -> str:
    return f"codehub-ws-{workspace_id}"


@dataclass(frozen=True)
class ContainerSettings:
    """What a container's configuration depends on besides the workload: who it runs as, our files, and
    further environment variables, and the disk of its home."""

    uid: int
    root: Path
    variables: Mapping[str, str] = field(default_factory=dict)
    disk: str | None = None
    """The device that homes are on; None if it is not known, or no single one."""


def container_config(
    spec: WorkloadSpec, setting: ContainerSettings, installation_id: str, network: str, address: str
) -> dict[str, Any]:
    """The body of `POST /containers/create`. Its hash, but for the network and the host name, is one of its
    labels: a new name does not replace a running container."""
    config = _config(spec, setting)
    config["Labels"] |= {
        Label.INSTALLATION: installation_id,
        Label.WORKSPACE: spec.workspace_id,
        Label.OP_ID: spec.op_id,
        Label.CONFIG: config_hash(config),
    }
    config["Hostname"] = as_host_name(spec.name, spec.workspace_id)
    config["HostConfig"]["NetworkMode"] = network
    config["NetworkingConfig"] = {"EndpointsConfig": {network: {"IPAMConfig": {"IPv4Address": address}}}}
    return config


def wanted_hash(spec: WorkloadSpec, setting: ContainerSettings) -> str:
    """What the label of an up-to-date container says."""
    return config_hash(_config(spec, setting))


def config_hash(config: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:16]


def _config(spec: WorkloadSpec, setting: ContainerSettings) -> dict[str, Any]:
    environment = {
        "HOME": HOME,
        "USER": "coder",
        "LOGNAME": "coder",
        "CODE_SERVER_CONFIG": CODE_SERVER_CONFIG,
        WORKSPACE_VARIABLE: spec.workspace_id,
        **setting.variables,
    }
    return {
        "Image": spec.image.docker,
        "User": f"{setting.uid}:{setting.uid}",
        "WorkingDir": HOME,
        "Env": [f"{name}={value}" for name, value in environment.items()],
        "Labels": {Label.PORT: str(spec.image.port), Label.READY_PATH: spec.image.ready_path},
        "HostConfig": _host_config(spec, _mounts(spec, setting)) | _disk_limits(spec.image, setting),
    }


def _mounts(spec: WorkloadSpec, setting: ContainerSettings) -> list[dict[str, Any]]:
    """A mount fails on a missing home, where `Binds` would make an empty one."""
    home = {"Type": "bind", "Source": str(spec.home), "Target": HOME}
    places = file_places(setting.root, spec.workspace_id)
    return [
        home,
        *(
            {"Type": "bind", "Source": str(source), "Target": target, "ReadOnly": True}
            for target, source in places.items()
        ),
    ]


def _host_config(spec: WorkloadSpec, mounts: list[dict[str, Any]]) -> dict[str, Any]:
    image, files = spec.image, open_files()
    return {
        "Mounts": mounts,
        "NanoCpus": round(image.cpus * _NANO),
        "Memory": image.memory_bytes,
        "MemorySwap": image.memory_bytes,
        "PidsLimit": image.pids,
        "OomScoreAdj": _OOM_SCORE_ADJUSTMENT,
        "CapDrop": ["ALL"],
        "SecurityOpt": ["no-new-privileges:true", *_seccomp(image)],
        "Ulimits": [{"Name": "nofile", "Soft": files, "Hard": files}],
        "Init": True,
        "IpcMode": "private",
        # The controller starts it again, and knows why it ended; the engine would not.
        "RestartPolicy": {"Name": "no"},
        # The engine's own would be of any number of files, and of 64 MiB whatever the cap is.
        "Tmpfs": {_SHARED_MEMORY: tmpfs_options(_SHARED_MEMORY, image.memory_bytes)},
        # For the same flood `json-file` wrote twice as much, for up to two thirds more of the engine's time.
        "LogConfig": {"Type": "local", "Config": _LOG_OPTIONS},
    }


def _disk_limits(image: Image, setting: ContainerSettings) -> dict[str, Any]:
    if image.disk_bandwidth is None or setting.disk is None:
        return {}
    limit = [{"Path": setting.disk, "Rate": image.disk_bandwidth}]
    return {"BlkioDeviceReadBps": limit, "BlkioDeviceWriteBps": limit}


def _seccomp(image: Image) -> list[str]:
    """Return the option. Without one, where no table of calls exists, the engine's own profile holds."""
    if image.seccomp == "unconfined":
        return ["seccomp=unconfined"]
    return [f"seccomp={seccomp.profile()}"] if machine() is not None else []


def files(uid: int, port: int, name: str) -> dict[str, str]:
    """What the container's user needs: a name for its number, and an IDE that asks no password.

    The IDE shows `name`. JSON's escapes are YAML's as well.
    """
    return {
        PASSWD: f"root:x:0:0:root:/root:/bin/sh\ncoder:x:{uid}:{uid}::{HOME}:/bin/bash\n"
        "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
        GROUP: f"root:x:0:\ncoder:x:{uid}:\nnogroup:x:65534:\n",
        CODE_SERVER_CONFIG: f"bind-addr: 0.0.0.0:{port}\nauth: none\ncert: false\n"
        "disable-telemetry: true\ndisable-update-check: true\ndisable-workspace-trust: true\n"
        f"disable-getting-started-override: true\napp-name: {json.dumps(name)}\n",
    }


def file_places(root: Path, workspace_id: str) -> dict[str, Path]:
    """Where on the host each of the files is kept. Not copied into the container: the engine mounts its root
    for that, and an engine that stops meanwhile leaves a container that can never be removed."""
    directory = files_of(root, workspace_id)
    return {target: directory / Path(target).name for target in (PASSWD, GROUP, CODE_SERVER_CONFIG)}


def files_of(root: Path, workspace_id: str) -> Path:
    return root / workspace_id
