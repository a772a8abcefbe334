"""`codehub up` on Docker: the lifecycle of workspaces, as owners and the gateway see it."""

from collections.abc import Callable
from typing import Any

import pytest

from codehub.runtimes.docker.networks import SPARES
from tests.docker.engine import OwnEngine
from tests.docker.system import DockerSystem, container_of, networks
from tests.selection import EVERYTHING
from tests.waiting import PATIENCE, wait_for
from tests.workspace_client import WorkspaceClient

AT_ONCE = 50 if EVERYTHING else 8


def test_the_lifecycle_of_a_workspace_on_docker(engine: OwnEngine, system: DockerSystem) -> None:
    owner, without_image = WorkspaceClient(system.start()), WorkspaceClient(system, "unreachable")
    owner.wait_for_phase("RUNNING")
    assert owner.client.get(f"/w/{owner.id}/healthz").text == "ok"
    assert engine.inside(owner.id, "echo precious > $HOME/file").returncode == 0

    first = container_of(engine, owner)
    engine.docker("rm", "--force", f"codehub-ws-{owner.id}")
    wait_for(lambda: container_of(engine, owner) not in ("", first), "the container to come back")
    owner.wait_for_phase("RUNNING")

    second = container_of(engine, owner)
    engine.docker("kill", f"codehub-ws-{owner.id}")
    wait_for(lambda: container_of(engine, owner) not in ("", second), "the container to come back again")
    owner.wait_for_phase("RUNNING")

    owner.set_desired_state("STANDBY")
    owner.wait_for_phase("STANDBY")
    assert engine.docker("ps", "--all", "--quiet") == ""
    wait_for(lambda: len(networks(engine)) <= SPARES, "only spare networks to be left")

    owner.set_desired_state("ARCHIVED")
    owner.wait_for_phase("ARCHIVED")
    owner.set_desired_state("RUNNING")
    owner.wait_for_phase("RUNNING")
    assert engine.inside(owner.id, "cat $HOME/file").stdout == b"precious\n"

    wait_for(lambda: without_image.workspace()["phase"] == "ERROR", "the pull to fail")
    failed = without_image.workspace()
    assert failed["error_reason"] == "ImagePullFailed"
    assert failed["error_message"].startswith("The registry of the image")

    engine.stop()
    engine.start()
    owner.wait_for_phase("RUNNING")
    wait_for(lambda: engine.inside(owner.id, "true").returncode == 0, "the container after the restart")

    third = container_of(engine, owner)
    assert system.stop() == 0
    assert container_of(engine, owner) == third
    assert system.command("down", "--workspaces").wait(PATIENCE) == 0
    assert container_of(engine, owner) == ""


def test_auto_selects_docker_and_a_change_of_the_runtime_stops_its_containers(
    engine: OwnEngine, system: DockerSystem
) -> None:
    system.runtime = "auto"
    owner = WorkspaceClient(system.start())
    owner.wait_for_phase("RUNNING")
    assert "docker: Docker" in system.command("doctor").communicate(timeout=PATIENCE)[0]
    assert system.stop() == 0
    system.runtime = "process"
    system.start()
    assert "Stopped 1 workspaces that ran on the docker runtime" in system.output
    assert container_of(engine, owner) == ""
    wait_for(lambda: owner.workspace()["operation"] == "STARTING", "the workspace to start as a process")


def test_many_workspaces_at_once(engine: OwnEngine, make_docker_system: Callable[..., DockerSystem]) -> None:
    limits = {"LIMITS_MAX_RUNNING_PER_USER": str(AT_ONCE), "LIMITS_MAX_RUNNING_GLOBAL": str(AT_ONCE)}
    system = make_docker_system(**limits).start()
    client = system.client()
    owners = [WorkspaceClient(system, client=client) for _ in range(AT_ONCE)]
    all_reach(owners, "RUNNING")
    for owner in owners:
        (owner.home / "name").write_text(owner.id)
        assert client.get(f"/w/{owner.id}/home/name").text == owner.id

    for owner in owners:
        owner.set_desired_state("STANDBY")
    all_reach(owners, "STANDBY")
    assert engine.docker("ps", "--all", "--quiet") == ""
    wait_for(lambda: len(networks(engine)) <= SPARES, "only spare networks to be left")
    assert system.stop() == 0
    assert system.command("down", "--workspaces").wait(PATIENCE) == 0
    assert networks(engine) == []


def all_reach(owners: list[WorkspaceClient], phase: str) -> None:
    """Wait for all workspaces, with the request that the dashboard makes."""

    def all_settled() -> bool:
        now = owners[0].client.get("/api/v1/workspaces", params={"limit": 100}).json()["items"]
        failed = [workspace for workspace in now if workspace["phase"] == "ERROR"]
        assert failed == []
        found = [workspace["id"] for workspace in now if is_at(workspace, phase)]
        return sorted(found) == sorted(owner.id for owner in owners)

    wait_for(all_settled, f"{len(owners)} workspaces to be {phase}", every=0.5)


def is_at(workspace: dict[str, Any], phase: str) -> bool:
    return (workspace["phase"], workspace["operation"]) == (phase, "NONE")


@pytest.mark.full
def test_workspaces_come_back_with_their_homes_after_a_kill_of_the_engine(
    engine: OwnEngine, make_docker_system: Callable[..., DockerSystem]
) -> None:
    system = make_docker_system().start()
    owners = [WorkspaceClient(system) for _ in range(2)]
    for owner in owners:
        owner.wait_for_phase("RUNNING")
        assert engine.inside(owner.id, f"echo {owner.id} > $HOME/file").returncode == 0
    before = {container_of(engine, owner) for owner in owners}

    engine.kill()
    engine.start()
    for owner in owners:
        wait_for(lambda: container_of(engine, owner) not in {"", *before}, "another container")  # noqa: B023
        owner.wait_for_phase("RUNNING")
        assert owner.client.get(f"/w/{owner.id}/home/file").text == f"{owner.id}\n"
        assert "error" not in owner.timeline_events()
