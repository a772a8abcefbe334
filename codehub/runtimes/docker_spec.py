"""What a workspace's container is made of: its name, labels and configuration. Pure."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from codehub.domain.images import Image
from codehub.runtimes.base import WorkloadSpec
from codehub.runtimes.leftovers import WORKSPACE_VARIABLE

HOME = "/home/coder"
CODE_SERVER_CONFIG = "/etc/codehub/code-server.yaml"
_NANO = 1_000_000_000
_OOM_SCORE_ADJUSTMENT = 500


class Label(StrEnum):
    INSTALLATION = "codehub.installation"
    WORKSPACE = "codehub.workspace"
    OP_ID = "codehub.op-id"
    CONFIG = "codehub.config"
    PORT = "codehub.port"
    READY_PATH = "codehub.ready-path"


def name_of(workspace_id: str) -> str:
    return f"codehub-ws-{workspace_id}"


def container_config(spec: WorkloadSpec, installation_id: str, uid: int, address: str) -> dict[str, Any]:
    """The body of `POST /containers/create`. Its hash is one of its labels."""
    config = _config(spec, uid)
    config["Labels"] |= {
        Label.INSTALLATION: installation_id,
        Label.WORKSPACE: spec.workspace_id,
        Label.OP_ID: spec.op_id,
        Label.CONFIG: config_hash(config),
    }
    name = name_of(spec.workspace_id)
    config["NetworkingConfig"] = {"EndpointsConfig": {name: {"IPAMConfig": {"IPv4Address": address}}}}
    return config


def wanted_hash(spec: WorkloadSpec, uid: int) -> str:
    """What the label of an up-to-date container says."""
    return config_hash(_config(spec, uid))


def config_hash(config: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:16]


def _config(spec: WorkloadSpec, uid: int) -> dict[str, Any]:
    environment = {
        "HOME": HOME,
        "USER": "coder",
        "LOGNAME": "coder",
        "CODE_SERVER_CONFIG": CODE_SERVER_CONFIG,
        WORKSPACE_VARIABLE: spec.workspace_id,
    }
    return {
        "Image": spec.image.docker,
        "User": f"{uid}:{uid}",
        "Hostname": name_of(spec.workspace_id)[:63],
        "WorkingDir": HOME,
        "Env": [f"{name}={value}" for name, value in environment.items()],
        "Labels": {Label.PORT: str(spec.image.port), Label.READY_PATH: spec.image.ready_path},
        "HostConfig": _host_config(spec, spec.image),
    }


def _host_config(spec: WorkloadSpec, image: Image) -> dict[str, Any]:
    return {
        # A mount fails on a missing home, where `Binds` would make an empty one.
        "Mounts": [{"Type": "bind", "Source": str(spec.home), "Target": HOME}],
        "NetworkMode": name_of(spec.workspace_id),
        "NanoCpus": round(image.cpus * _NANO),
        "Memory": image.memory_bytes,
        "MemorySwap": image.memory_bytes,
        "PidsLimit": image.pids,
        "OomScoreAdj": _OOM_SCORE_ADJUSTMENT,
        "CapDrop": ["ALL"],
        "SecurityOpt": ["no-new-privileges:true"],
        "Init": True,
        "IpcMode": "private",
        # The controller starts it again, and knows why it ended; the engine would not.
        "RestartPolicy": {"Name": "no"},
        "LogConfig": {"Type": "json-file", "Config": {"max-size": "1m", "max-file": "2"}},
    }


def files(uid: int, port: int) -> bytes:
    """A tar of what the container's user needs: a name for its number, and an IDE that asks no password."""
    texts = {
        "etc/passwd": f"root:x:0:0:root:/root:/bin/sh\ncoder:x:{uid}:{uid}::{HOME}:/bin/bash\n"
        "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
        "etc/group": f"root:x:0:\ncoder:x:{uid}:\nnogroup:x:65534:\n",
        CODE_SERVER_CONFIG[1:]: f"bind-addr: 0.0.0.0:{port}\nauth: none\ncert: false\n"
        "disable-telemetry: true\ndisable-update-check: true\ndisable-workspace-trust: true\n",
    }
    with io.BytesIO() as buffer:
        with tarfile.open(fileobj=buffer, mode="w") as tar:
            for name in ("etc", "etc/codehub"):
                tar.addfile(_entry(name, tarfile.DIRTYPE, 0o755))
            for name, text in texts.items():
                data = text.encode()
                entry = _entry(name, tarfile.REGTYPE, 0o644)
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))
        return buffer.getvalue()


def _entry(name: str, kind: bytes, mode: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode = kind, mode
    return entry
