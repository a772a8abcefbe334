"""`codehub up` on the engine of the tests."""

import subprocess
from pathlib import Path

from tests.docker.engine import TINY, OwnEngine
from tests.services import System, free_port
from tests.workspace_client import WorkspaceClient

IMAGES = f"""
[[image]]
name = "tiny"
docker = "{TINY}"
process = ["sleep", "1000000"]
ready_path = "/healthz"
memory = "64m"

[[image]]
name = "unreachable"
docker = "127.0.0.1:{{port}}/nothing:1"
"""


class DockerSystem(System):
    runtime = "docker"

    def command(self, *arguments: str) -> subprocess.Popen[str]:
        """Run a command of CodeHub; `up` gets the runtime of this system."""
        if arguments[0] == "up":
            return super().command("up", "--runtime", self.runtime)
        return super().command(*arguments)


def on_engine(engine: OwnEngine, **environment: str) -> DockerSystem:
    """Return a system with short intervals, for faster tests."""
    common = {
        "DOCKER_HOST": engine.url,
        "COORDINATOR_IDLE_INTERVAL": "1",
        "RECONCILER_RETRY_BACKOFF": "1",
        "GATEWAY_WORKERS": "1",
        "APPS_DOMAIN": "",
    }
    return DockerSystem(common | environment)


def write_images(directory: Path) -> str:
    """Write an images file with a tiny image, and one without a registry."""
    images = directory / "images.toml"
    images.write_text(IMAGES.format(port=free_port()))
    return str(images)


def networks(engine: OwnEngine) -> list[str]:
    return engine.docker("network", "ls", "--quiet", "--filter", "type=custom").split()


def container_of(engine: OwnEngine, owner: WorkspaceClient) -> str:
    return engine.docker("ps", "--quiet", "--no-trunc", "--filter", f"name=codehub-ws-{owner.id}")
