"""`codehub up` on Docker: a workspace's whole life, as its owner and the gateway see it."""

import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from codehub.runtimes.docker.network import SPARES
from tests.docker.engine import TINY, OwnEngine
from tests.services import System, free_port, wait_for

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
        """`up` comes with the runtime of the process tests; here it is another."""
        if arguments[0] == "up":
            return super().command("up", "--runtime", self.runtime)
        return super().command(*arguments)


@pytest.fixture
def system(engine: OwnEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DockerSystem]:
    images = tmp_path_factory.mktemp("images") / "images.toml"
    images.write_text(IMAGES.format(port=free_port()))
    made = DockerSystem(
        {
            "DOCKER_HOST": engine.url,
            "IMAGES_FILE": str(images),
            "COORDINATOR_IDLE_INTERVAL": "1",
            "RECONCILER_RETRY_BACKOFF": "1",
            "RECONCILER_MAX_RETRIES": "10",  # each death that the test causes counts
            "GATEWAY_WORKERS": "1",
            "APPS_DOMAIN": "",
        }
    )
    yield made
    made.close()


def networks(engine: OwnEngine) -> list[str]:
    return engine.docker("network", "ls", "--quiet", "--filter", "type=custom").split()


class Owner:
    def __init__(self, system: System, image: str = "tiny") -> None:
        self.client = system.client()
        body = {"name": image, "image_ref": image}
        answer = self.client.post("/api/v1/workspaces", json=body)
        assert answer.status_code == 201, answer.text
        self.id: str = answer.json()["id"]

    def workspace(self) -> dict[str, Any]:
        found: dict[str, Any] = self.client.get(f"/api/v1/workspaces/{self.id}").json()
        return found

    def wish(self, state: str) -> None:
        answer = self.client.patch(f"/api/v1/workspaces/{self.id}", json={"desired_state": state})
        assert answer.status_code == 200, answer.text

    def reaches(self, phase: str) -> None:
        def there() -> bool:
            now = self.workspace()
            assert now["phase"] != "ERROR", now
            return (now["phase"], now["operation"]) == (phase, "NONE")

        wait_for(there, f"{phase}, at {self.workspace()}", 60)


def container_of(engine: OwnEngine, owner: Owner) -> str:
    return engine.docker("ps", "--quiet", "--no-trunc", "--filter", f"name=codehub-ws-{owner.id}")


def test_a_workspace_lives_on_docker(engine: OwnEngine, system: DockerSystem) -> None:
    owner, unlucky = Owner(system.start()), Owner(system, "unreachable")
    owner.reaches("RUNNING")
    assert owner.client.get(f"/w/{owner.id}/healthz").text == "ok"
    assert engine.inside(owner.id, "echo precious > $HOME/file").returncode == 0

    first = container_of(engine, owner)
    engine.docker("rm", "--force", f"codehub-ws-{owner.id}")
    wait_for(lambda: container_of(engine, owner) not in ("", first), "the container to come back", 60)
    owner.reaches("RUNNING")

    second = container_of(engine, owner)
    engine.docker("kill", f"codehub-ws-{owner.id}")
    wait_for(lambda: container_of(engine, owner) not in ("", second), "the container to come back again", 60)
    owner.reaches("RUNNING")

    owner.wish("STANDBY")
    owner.reaches("STANDBY")
    assert engine.docker("ps", "--all", "--quiet") == ""
    wait_for(lambda: len(networks(engine)) <= SPARES, "no more networks than are kept ready")

    owner.wish("ARCHIVED")
    owner.reaches("ARCHIVED")
    owner.wish("RUNNING")
    owner.reaches("RUNNING")
    assert engine.inside(owner.id, "cat $HOME/file").stdout == b"precious\n"

    wait_for(lambda: unlucky.workspace()["phase"] == "ERROR", "the pull to be given up", 60)
    failed = unlucky.workspace()
    assert failed["error_reason"] == "ImagePullFailed"
    assert failed["error_message"].startswith("The registry of the image")

    engine.stop()
    engine.start()
    owner.reaches("RUNNING")
    wait_for(lambda: engine.inside(owner.id, "true").returncode == 0, "the container after the restart", 60)

    third = container_of(engine, owner)
    assert system.stop() == 0
    assert container_of(engine, owner) == third
    assert system.command("down", "--workspaces").wait(60) == 0
    assert container_of(engine, owner) == ""


def test_auto_takes_docker_and_leaving_it_leaves_no_container_on_a_home(
    engine: OwnEngine, system: DockerSystem
) -> None:
    system.runtime = "auto"
    owner = Owner(system.start())
    owner.reaches("RUNNING")
    assert "docker: Docker" in system.command("doctor").communicate(timeout=60)[0]
    assert system.stop() == 0
    system.runtime = "process"
    system.start()
    assert "Stopped 1 workspaces that ran on the docker runtime" in system.output
    assert container_of(engine, owner) == ""
