"""A container reaches nothing of a running `codehub up` and its engine but the public port."""

import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from codehub.runtimes.docker.container_config import CODE_SERVER_CONFIG, HOME
from tests.docker.engine import OwnEngine
from tests.docker.system import DockerSystem, on_engine, write_images
from tests.integration.runtimes.conftest import post
from tests.integration.runtimes.network_peers import listening
from tests.integration.runtimes.test_reach_system import IMAGES as PROCESS_IMAGES
from tests.reachability import (
    Answers,
    connect_command,
    connect_from_host,
    connect_from_namespaces,
    listening_ports,
    listening_sockets,
    own_addresses,
    paths_below,
    processes_on_host,
    read_from_host,
    read_from_namespaces,
    successes,
)
from tests.services import System, processes_of, run
from tests.workspace_client import WorkspaceClient

CODEHUB_FILES = {"/etc/passwd", "/etc/group", CODE_SERVER_CONFIG}
ENGINE_FILES = {"/etc/resolv.conf", "/etc/hostname", "/etc/hosts", "/sbin/docker-init"}


@dataclass(frozen=True)
class Container:
    """A workspace's container, as the engine describes it."""

    owner: WorkspaceClient
    description: dict[str, Any]

    @property
    def first_process(self) -> int:
        return int(self.description["State"]["Pid"])

    @property
    def uid(self) -> int:
        return int(self.description["Config"]["User"].partition(":")[0])

    @property
    def ide(self) -> str:
        [network] = self.description["NetworkSettings"]["Networks"].values()
        return f"{network['IPAddress']}:8080"

    @property
    def gateway(self) -> str:
        [network] = self.description["NetworkSettings"]["Networks"].values()
        return str(network["Gateway"])

    def reaches(self, *names: str, dropped: Iterable[str] = ()) -> set[str]:
        return successes(connect_from_namespaces(self.first_process, self.uid, *names, dropped=dropped))

    def reads(self, *paths: str) -> set[str]:
        return successes(read_from_namespaces(self.first_process, self.uid, *paths))


@dataclass(frozen=True)
class SystemFixture:
    """A running system with three workspaces.

    One probes, one must not be reached, and one is archived.
    """

    engine: OwnEngine
    system: DockerSystem
    prober: Container
    other: Container


@pytest.fixture(scope="module")
def running(own_engine: OwnEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SystemFixture]:
    images = write_images(tmp_path_factory.mktemp("images"))
    system = on_engine(own_engine, IMAGES_FILE=images, HOST="0.0.0.0")
    try:
        yield set_up(own_engine, system.start())
    finally:
        system.close()
        own_engine.clear()


def set_up(engine: OwnEngine, system: DockerSystem) -> SystemFixture:
    prober, other, archived = (
        WorkspaceClient(system),
        WorkspaceClient(system),
        WorkspaceClient(system, state="ARCHIVED"),
    )
    prober.wait_for_phase("RUNNING")
    other.wait_for_phase("RUNNING")
    archived.wait_for_phase("ARCHIVED")
    (other.home / "private").write_text("secret")
    return SystemFixture(engine, system, container(engine, prober), container(engine, other))


def container(engine: OwnEngine, owner: WorkspaceClient) -> Container:
    [description] = json.loads(engine.docker("inspect", f"codehub-ws-{owner.id}"))
    return Container(owner, description)


def test_a_container_reaches_only_the_public_port(running: SystemFixture) -> None:
    system, engine = running.system, running.engine
    processes = processes_on_host([*processes_of(system.data_dir), *processes_of(engine.directory)])
    sockets = listening_sockets(processes)
    assert {Path(name).name for name in sockets} >= {
        ".s.PGSQL.5432", "redis.sock", "api.sock", "docker.sock", "containerd.sock",
    }  # fmt: skip
    assert listening_ports(processes) == {system.port}

    public = {f"{address}:{system.port}" for address in (running.prober.gateway, own_addresses()[0])}
    closed = {*sockets, f"127.0.0.1:{system.port}", running.other.ide}
    assert successes(connect_from_host(*closed, *public)) == {*closed, *public}
    with listening(f"{running.prober.owner.home}/s") as socket:
        os.chmod(socket, 0o666)
        reachable = {running.prober.ide, f"{HOME}/s"}  # proves that the probe itself works
        reached = running.prober.reaches(*closed, *public, *reachable, dropped=[running.other.ide])
        assert reached == {*public, *reachable}


def test_a_container_reads_no_file_of_the_data_directory_or_the_engine(running: SystemFixture) -> None:
    data_dir, engine_dir = running.system.data_dir, running.engine.directory
    paths = [*paths_below(data_dir), str(engine_dir), *map(str, engine_dir.iterdir())]
    read = successes(read_from_host(*paths))
    for part in ("jobs", "archives", "logs", "volumes", "runtime", "postgres", "redis"):
        assert any(Path(path).is_relative_to(data_dir / part) for path in read), part
    assert {str(running.other.owner.home / "private"), str(engine_dir / "data")} <= read
    assert running.prober.reads(*paths, "/etc/passwd") == {"/etc/passwd"}


def test_a_container_mounts_only_its_home_and_read_only_files(running: SystemFixture) -> None:
    mounts = running.prober.description["Mounts"]
    sources = {mount["Destination"]: mount["Source"] for mount in mounts if mount["RW"]}
    assert sources == {HOME: str(running.prober.owner.home)}
    assert {mount["Destination"] for mount in mounts if not mount["RW"]} == CODEHUB_FILES
    table = Path(f"/proc/{running.prober.first_process}/mountinfo").read_text()
    places = {line.split()[4] for line in table.splitlines()}
    assert {place for place in places if not place.startswith(("/proc", "/sys", "/dev"))} == {
        "/", HOME, *CODEHUB_FILES, *ENGINE_FILES,
    }  # fmt: skip
    for file in (*CODEHUB_FILES, *ENGINE_FILES):
        assert running.engine.inside(running.prober.owner.id, f"echo x >> {file}").returncode != 0, file


@pytest.mark.full  # a second system; runtimes/test_process_reach.py probes a similar socket
def test_a_workspace_of_the_process_runtime_does_not_reach_the_engine(
    own_engine: OwnEngine, make_system: Callable[..., System], tmp_path: Path
) -> None:
    images = tmp_path / "images.toml"
    images.write_text(PROCESS_IMAGES)
    system = make_system(IMAGES_FILE=str(images)).start()
    owner = WorkspaceClient(system)
    owner.wait_for_phase("RUNNING")
    sockets = listening_sockets(processes_on_host(processes_of(own_engine.directory)))
    assert str(own_engine.directory / "docker.sock") in sockets
    assert successes(connect_from_host(*sockets)) == sockets
    ide = system.data_dir / "runtime" / owner.id / "up" / "ide.sock"
    answers: Answers = json.loads(run(post(str(ide), connect_command(*sockets))))
    assert answers.keys() == sockets and not successes(answers)
