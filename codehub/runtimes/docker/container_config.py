"""Name, labels and configuration of a workspace's container. Pure functions."""

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
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - inside the container
_LOG_OPTIONS = {"max-size": "1m", "max-file": "2", "compress": "false"}
"""A flood of output fills a file within a second: compressing it would only cost more."""


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
    """Settings of a container besides its workload."""

    uid: int
    root: Path
    variables: Mapping[str, str] = field(default_factory=dict)
    disk: str | None = None
    """The device of its home; None if it need not be known, or is not a single one."""


def container_config(
    spec: WorkloadSpec, settings: ContainerSettings, installation_id: str, network: str, address: str
) -> dict[str, Any]:
    """Return the body of `POST /containers/create`.

    A label has its hash without the network and the host name: a new name does not replace a
    running container.
    """
    config = _config(spec, settings)
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


def desired_hash(spec: WorkloadSpec, settings: ContainerSettings) -> str:
    """Return the label of an up-to-date container."""
    return config_hash(_config(spec, settings))


def config_hash(config: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:16]


def _config(spec: WorkloadSpec, settings: ContainerSettings) -> dict[str, Any]:
    environment = {
        "HOME": HOME,
        "USER": "coder",
        "LOGNAME": "coder",
        "CODE_SERVER_CONFIG": CODE_SERVER_CONFIG,
        WORKSPACE_VARIABLE: spec.workspace_id,
        **settings.variables,
    }
    return {
        "Image": spec.image.docker,
        "User": f"{settings.uid}:{settings.uid}",
        "WorkingDir": HOME,
        "Env": [f"{name}={value}" for name, value in environment.items()],
        "Labels": {Label.PORT: str(spec.image.port), Label.READY_PATH: spec.image.ready_path},
        "HostConfig": _host_config(spec, _mounts(spec, settings)) | _disk_limits(spec.image, settings),
    }


def _mounts(spec: WorkloadSpec, settings: ContainerSettings) -> list[dict[str, Any]]:
    """Return the mounts. They fail on a missing home, where `Binds` would create an empty one."""
    home = {"Type": "bind", "Source": str(spec.home), "Target": HOME}
    paths = file_paths(settings.root, spec.workspace_id)
    return [
        home,
        *(
            {"Type": "bind", "Source": str(source), "Target": target, "ReadOnly": True}
            for target, source in paths.items()
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
        # The controller restarts it and reports why it ended; the engine would not.
        "RestartPolicy": {"Name": "no"},
        # The engine's default is 64 MiB whatever the cap is, with any number of files.
        "Tmpfs": {_SHARED_MEMORY: tmpfs_options(_SHARED_MEMORY, image.memory_bytes)},
        # For the same flood `json-file` wrote twice as much, and cost the engine up to two thirds
        # more CPU time.
        "LogConfig": {"Type": "local", "Config": _LOG_OPTIONS},
    }


def _disk_limits(image: Image, settings: ContainerSettings) -> dict[str, Any]:
    if image.disk_bandwidth is None or settings.disk is None:
        return {}
    limit = [{"Path": settings.disk, "Rate": image.disk_bandwidth}]
    return {"BlkioDeviceReadBps": limit, "BlkioDeviceWriteBps": limit}


def _seccomp(image: Image) -> list[str]:
    """Return the option.

    Without one, if there is no table of calls, the engine's own profile applies.
    """
    if image.seccomp == "unconfined":
        return ["seccomp=unconfined"]
    return [f"seccomp={seccomp.profile()}"] if machine() is not None else []


def container_files(uid: int, port: int, name: str) -> dict[str, str]:
    """Return files for the container: a name for its user id, and an IDE without a password.

    The IDE shows `name`. JSON escapes are valid in YAML.
    """
    return {
        PASSWD: f"root:x:0:0:root:/root:/bin/sh\ncoder:x:{uid}:{uid}::{HOME}:/bin/bash\n"
        "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
        GROUP: f"root:x:0:\ncoder:x:{uid}:\nnogroup:x:65534:\n",
        CODE_SERVER_CONFIG: f"bind-addr: 0.0.0.0:{port}\nauth: none\ncert: false\n"
        "disable-telemetry: true\ndisable-update-check: true\ndisable-workspace-trust: true\n"
        f"disable-getting-started-override: true\napp-name: {json.dumps(name)}\n",
    }


def file_paths(root: Path, workspace_id: str) -> dict[str, Path]:
    """Return the path on the host for each file, by its path in the container.

    They are mounted, not copied: to copy, the engine mounts the container's root, and if it stops
    meanwhile the container can never be removed.
    """
    directory = files_directory(root, workspace_id)
    return {target: directory / Path(target).name for target in (PASSWD, GROUP, CODE_SERVER_CONFIG)}


def files_directory(root: Path, workspace_id: str) -> Path:
    return root / workspace_id
