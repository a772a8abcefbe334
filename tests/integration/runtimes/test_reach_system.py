"""A process workspace reaches nothing of a running `codehub up` but its public port."""

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from codehub.domain.ports import PORT_BROKER_SOCKET
from codehub.runtimes.process.sandbox import HOME
from tests.integration.runtimes.conftest import TINY, post
from tests.integration.runtimes.network_peers import listening
from tests.reachability import (
    Answers,
    connect_command,
    connect_from_host,
    listening_ports,
    listening_sockets,
    own_addresses,
    paths_below,
    processes_on_host,
    read_command,
    read_from_host,
    successes,
)
from tests.services import System, processes_of, run, short_temp_dir
from tests.workspace_client import WorkspaceClient

IMAGES = f"""
[[image]]
name = "tiny"
ready_path = "/"
process = {json.dumps(TINY.process)}
"""
OWN_NETWORK, HOSTS_NETWORK = "a separate network", "the host's network"


@dataclass(frozen=True)
class SystemFixture:
    """A running system with three workspaces.

    One probes, one must not be reached, and one is archived.
    """

    system: System
    asking: WorkspaceClient
    other: WorkspaceClient
    has_own_network: bool

    def inside(self, command: str) -> Answers:
        """Run a command in the probing workspace and return its answers."""
        socket = self.system.data_dir / "runtime" / self.asking.id / "up" / "ide.sock"
        answers: Answers = json.loads(run(post(str(socket), command)))
        return answers


@pytest.fixture(scope="module", params=[OWN_NETWORK, pytest.param(HOSTS_NETWORK, marks=pytest.mark.full)])
def stage(request: pytest.FixtureRequest) -> Iterator[SystemFixture]:
    if os.geteuid() != 0 or not all(map(shutil.which, ("bwrap", "slirp4netns"))):
        pytest.skip("needs root, bubblewrap and slirp4netns: apt-get install bubblewrap slirp4netns")
    directory = short_temp_dir()  # PostgreSQL's user must be able to enter it
    (directory / "images.toml").write_text(IMAGES)
    environment = {"HOST": "0.0.0.0", "IMAGES_FILE": str(directory / "images.toml")}
    if request.param == HOSTS_NETWORK:
        environment["PATH"] = programs_but("slirp4netns", directory / "programs")
    system = System(environment)
    try:
        yield set_up(system.start(), request.param == OWN_NETWORK)
    finally:
        system.close()
        shutil.rmtree(directory)


def programs_but(missing: str, links: Path) -> str:
    """Return a PATH with every program but one."""
    links.mkdir()
    for directory in os.environ["PATH"].split(os.pathsep):
        for program in Path(directory).glob("*"):
            if program.name != missing and not os.path.lexists(links / program.name):
                (links / program.name).symlink_to(program)
    return str(links)


def set_up(system: System, has_own_network: bool) -> SystemFixture:
    asking, other, archived = (
        WorkspaceClient(system),
        WorkspaceClient(system),
        WorkspaceClient(system, state="ARCHIVED"),
    )
    asking.wait_for_phase("RUNNING")
    other.wait_for_phase("RUNNING")
    archived.wait_for_phase("ARCHIVED")
    (other.home / "private").write_text("secret")
    return SystemFixture(system, asking, other, has_own_network)


def test_of_everything_that_listens_only_the_public_port_is_reached(stage: SystemFixture) -> None:
    system = stage.system
    processes = processes_on_host(processes_of(system.data_dir))
    sockets = listening_sockets(processes)
    broker_sockets = {
        f"{system.data_dir}/runtime/{owner.id}/up/{PORT_BROKER_SOCKET}"
        for owner in (stage.asking, stage.other)
    }
    assert {Path(name).name for name in sockets} >= {".s.PGSQL.5432", "redis.sock", "api.sock"}
    assert broker_sockets <= sockets or not stage.has_own_network
    assert listening_ports(processes) == {system.port}

    sockets |= set(map(str, (system.data_dir / "runtime" / stage.other.id).rglob("ide.sock")))
    here, loopback = (f"{address}:{system.port}" for address in (own_addresses()[0], "127.0.0.1"))
    asked = [*sockets, here, loopback]
    assert successes(connect_from_host(*asked)) == {*asked}
    expected = {here} if stage.has_own_network else {here, loopback}
    with listening(f"{stage.asking.home}/s") as socket:
        os.chmod(socket, 0o666)
        its_own = f"{HOME}/s"  # proves that the probe itself works
        assert successes(stage.inside(connect_command(*asked, its_own))) == {*expected, its_own}


def test_nothing_below_the_data_directory_is_read(stage: SystemFixture) -> None:
    data_dir = stage.system.data_dir
    # PostgreSQL has many tables, and the length of a command is limited.
    paths = [path for path in paths_below(data_dir) if "/postgres/base/" not in path]
    read = successes(read_from_host(*paths))
    for part in ("jobs", "archives", "logs", "volumes", "runtime", "postgres", "redis"):
        assert any(Path(path).is_relative_to(data_dir / part) for path in read), part
    assert str(stage.other.home / "private") in read
    assert successes(stage.inside(read_command(*paths))) == set()
