"""Baselines: the image's own command, and `docker run` of an identical container."""

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import httpx

from codehub.domain.images import BUILT_IN, expand_command
from codehub.embedded.server_processes import end_child
from codehub.runtimes.base import WorkloadSpec
from codehub.runtimes.docker import host_files
from codehub.runtimes.docker.container_config import ContainerSettings, container_config
from tests.docker.engine import OwnEngine
from tests.waiting import wait_for

IMAGE = BUILT_IN[0]
POLL_SECONDS = 0.02
STOP = [(signal.SIGTERM, 10.0), (signal.SIGKILL, 5.0)]
CONTAINER, NETWORK, ADDRESS = "baseline", "baseline", "10.221.0.2"


class BareCommand:
    """The image's command in a home that it has used before, until it responds on its socket."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._socket = home.with_suffix(".sock")
        self._child: subprocess.Popen[bytes] | None = None

    def measure(self) -> float:
        self._socket.unlink(missing_ok=True)
        home = str(self._home)
        assert IMAGE.process is not None
        command = expand_command(
            IMAGE.process, socket=str(self._socket), home=home, workspace_id="bare", name="bare"
        )
        environment = {"PATH": os.environ["PATH"], "HOME": home, "LANG": "C.UTF-8", "SHELL": "/bin/bash"}
        began = time.perf_counter()
        self._child = subprocess.Popen(
            command, env=environment, cwd=home, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        transport = httpx.HTTPTransport(uds=str(self._socket))
        with httpx.Client(transport=transport, base_url="http://ide") as client:
            return _until_ready(client, began)

    def end(self) -> None:
        if self._child is not None:
            end_child(self._child, STOP)


def _until_ready(client: httpx.Client, began: float) -> float:
    wait_for(lambda: _is_ready(client), "a response of the IDE", every=POLL_SECONDS)
    return time.perf_counter() - began


def _is_ready(client: httpx.Client) -> bool:
    try:
        return client.get(IMAGE.ready_path, timeout=1).is_success
    except httpx.TransportError:
        return False


class DockerRun:
    """`docker run` with the options of a workspace's container, on an existing network."""

    def __init__(self, engine: OwnEngine, workspace_id: str, directory: Path) -> None:
        self._engine = engine
        engine.docker("network", "create", "--subnet", "10.221.0.0/29", NETWORK)
        home = directory / "docker-home"
        home.mkdir()
        self._arguments = _docker_arguments(workspace_id, home)

    def measure(self) -> float:
        began = time.perf_counter()
        self._engine.docker("run", *self._arguments)
        with httpx.Client(base_url=f"http://{ADDRESS}:{IMAGE.port}") as client:
            return _until_ready(client, began)

    def end(self) -> None:
        self._engine.docker("rm", "--force", CONTAINER)


def _docker_arguments(workspace_id: str, home: Path) -> list[str]:
    """Return CodeHub's configuration of a container as arguments of `docker run`."""
    spec = WorkloadSpec(workspace_id, IMAGE, home, "baseline", 2_100_000)
    settings = ContainerSettings(host_files.user_of(spec), home.with_name("docker-files"))
    host_files.prepare(spec, settings)
    config = container_config(spec, settings, "", NETWORK, ADDRESS)
    profile = home.with_name("seccomp.json")
    return [*_flags(config, profile), str(config["Image"])]


def _with_profile_in_file(option: str, profile: Path) -> str:
    """Return the option with the path of a file in place of a seccomp profile.

    The engine takes the profile itself, and its command line takes a path.
    """
    name, _, value = option.partition("=")
    if name != "seccomp":
        return option
    profile.write_text(value)
    return f"{name}={profile}"


def _flags(config: dict[str, Any], profile: Path) -> list[str]:
    host = config["HostConfig"]
    flags = ["--detach", "--name", CONTAINER, "--network", NETWORK, "--ip", ADDRESS]
    flags += ["--user", config["User"], "--workdir", config["WorkingDir"], "--hostname", config["Hostname"]]
    flags += [part for variable in config["Env"] for part in ("--env", variable)]
    flags += ["--cpus", str(host["NanoCpus"] / 1e9), "--memory", str(host["Memory"])]
    flags += ["--memory-swap", str(host["MemorySwap"]), "--pids-limit", str(host["PidsLimit"])]
    flags += ["--oom-score-adj", str(host["OomScoreAdj"]), "--cap-drop", "ALL", "--init", "--ipc", "private"]
    flags += [
        part
        for option in host["SecurityOpt"]
        for part in ("--security-opt", _with_profile_in_file(option, profile))
    ]
    flags += [
        part
        for name, value in host["LogConfig"]["Config"].items()
        for part in ("--log-opt", f"{name}={value}")
    ]
    for mount in host["Mounts"]:
        value = f"type=bind,source={mount['Source']},target={mount['Target']}"
        flags += ["--mount", value + (",readonly" if mount.get("ReadOnly") else "")]
    return flags
