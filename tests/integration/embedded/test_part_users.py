"""Under a root `codehub up`, the API and the gateway run as users of their own."""

import json
import os
import shutil
import signal
import socket
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from codehub.settings import load
from tests.integration.coordinator.conftest import IDE
from tests.integration.gateway import issuing
from tests.integration.gateway.test_ports_system import APP_PORT, NAVIGATION, Owner
from tests.reachability import (
    connect_from_namespaces,
    paths_below,
    read_from_host,
    read_from_namespaces,
    successes,
)
from tests.services import System, descendants
from tests.waiting import wait_for

API, GATEWAY, SERVERS, ACCESS = (load(_env_file=None).workspace_uid_base - below for below in (1, 2, 3, 4))
NET_BIND_SERVICE = 1 << 10
START = f'/usr/bin/python3 -m http.server -b 127.0.0.1 {APP_PORT} & umask 177; exec /usr/bin/python3 -c "$@"'
"""An app, and an IDE whose socket only the workspace's own user may use."""
IMAGES = f"""
[[image]]
name = "with-an-app"
ready_path = "/"
process = {json.dumps(["/bin/sh", "-c", START, "sh", IDE, "{socket}"])}
"""


@dataclass(frozen=True)
class Rights:
    uids: set[int]
    gids: set[int]
    groups: list[int]
    capabilities: int
    bounding: int
    no_new_privileges: bool
    traceable_by_its_user: bool

    @classmethod
    def of(cls, pid: int) -> "Rights":
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        fields = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
        capabilities = [int(fields[name][0], 16) for name in ("CapPrm", "CapEff", "CapInh", "CapAmb")]
        return cls(
            uids={*map(int, fields["Uid"])},
            gids={*map(int, fields["Gid"])},
            groups=[*map(int, fields["Groups"])],
            capabilities=capabilities[0] | capabilities[1] | capabilities[2] | capabilities[3],
            bounding=int(fields["CapBnd"][0], 16),
            no_new_privileges=fields["NoNewPrivs"] == ["1"],
            traceable_by_its_user=Path(f"/proc/{pid}/environ").stat().st_uid != 0,
        )


def rights_of_part(uid: int, capabilities: int = 0) -> Rights:
    return Rights({uid}, {uid}, [SERVERS], capabilities, 0, True, False)


def has_users_of_its_own(system: System, capabilities: int = 0) -> bool:
    pids = system.pids()
    gateways = [pids["gateway"], *descendants(pids["gateway"])]
    return (
        Rights.of(pids["api"]) == rights_of_part(API)
        and Rights.of(pids["access"]) == rights_of_part(ACCESS)
        and all(Rights.of(pid) == rights_of_part(GATEWAY, capabilities) for pid in gateways)
        and len(gateways) == 3
        and Rights.of(pids["coordinator"]).uids == {0}
    )


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if os.geteuid() != 0 or not all(map(shutil.which, ("bwrap", "slirp4netns"))):
        pytest.skip("needs root, bubblewrap and slirp4netns: apt-get install bubblewrap slirp4netns")
    path = tmp_path_factory.mktemp("images") / "images.toml"
    path.write_text(IMAGES)
    path.chmod(0o600)
    return path


@pytest.fixture(scope="module")
def system(images: Path) -> Iterator[System]:
    system = System({"IMAGES_FILE": str(images), "GATEWAY_WORKERS": "2", "LIMITS_MAX_RUNNING_PER_USER": "10"})
    try:
        yield system.start()
    finally:
        system.close()


def opens_ide(owner: Owner) -> bool:
    """Whether its owner reaches the workspace's IDE."""
    answer = owner.api.get(f"/w/{owner.id}", headers=NAVIGATION)
    host = f"{owner.id}.{owner.platform}"
    while answer.is_redirect:
        url = httpx.URL(answer.headers["location"])
        target = url.raw_path.decode()
        on_platform = url.netloc.decode() == owner.platform
        answer = (
            owner.api.get(target, headers=NAVIGATION)
            if on_platform
            else owner.get(host, target, **NAVIGATION)
        )
    return answer.status_code == 200 and answer.text == "ok"


def test_a_workspace_works_while_the_api_and_the_gateway_have_users_of_their_own(system: System) -> None:
    owner = Owner(system)
    assert has_users_of_its_own(system)
    wait_for(lambda: owner.is_in("RUNNING"), "the workspace to run")
    assert opens_ide(owner)
    wait_for(lambda: "Directory listing" in owner.navigate(APP_PORT).text, "the app to listen")

    before = system.pids()
    for part in ("api", "gateway"):
        os.kill(before[part], signal.SIGKILL)
    wait_for(
        lambda: all(
            system.pids().get(part, pid) != pid for part, pid in before.items() if part in ("api", "gateway")
        ),
        "new parts",
    )
    wait_for(lambda: signs_in(system), "sign-in to work again")
    assert has_users_of_its_own(system)
    assert opens_ide(owner)

    set_desired_state(owner, "ARCHIVED")
    set_desired_state(owner, "RUNNING")
    assert opens_ide(owner)


def set_desired_state(owner: Owner, state: str) -> None:
    answer = owner.api.patch(f"/api/v1/workspaces/{owner.id}", json={"desired_state": state})
    assert answer.status_code == 200, answer.text
    wait_for(lambda: owner.is_in(state), state)


def signs_in(system: System) -> bool:
    try:
        system.client()
    except (httpx.HTTPError, AssertionError):
        return False
    return True


def test_the_parts_cannot_read_what_is_not_theirs(system: System) -> None:
    owner, archived = Owner(system), Owner(system)
    wait_for(lambda: owner.is_in("RUNNING") and archived.is_in("RUNNING"), "the workspaces to run")
    set_desired_state(archived, "ARCHIVED")
    data_dir, pids = system.data_dir, system.pids()
    [home] = data_dir.glob(f"volumes/users/*/workspaces/{owner.id}/home")
    (home / "private").write_text("secret")
    started = owner.api.post(
        f"/api/v1/workspaces/{owner.id}/execs", json={"command": "echo said; sleep 1000"}
    )
    assert started.status_code == 201, started.text
    commands = data_dir / "execs" / owner.id
    command = commands / started.json()["id"]
    wait_for((command / "stdout.0").exists, "the command to write")

    paths = [path for path in paths_below(data_dir) if "/postgres/base/" not in path]
    paths += [f"/proc/{pids[part]}/environ" for part in ("coordinator", "gateway", "api", "access")]
    for part in ("jobs", "archives", "logs", "volumes", "runtime", "execs", "postgres", "redis"):
        assert any(
            Path(path).is_relative_to(data_dir / part) for path in successes(read_from_host(*paths))
        ), part
    public = {
        path
        for path in paths
        if path.endswith(("/passwd", "/group", "/resolv.conf", "/chosen", "installation-id", "children.json"))
    }
    kept = {str(path) for path in (data_dir / "execs").rglob("*") if path.is_file()}
    assert str(command / "record") in kept
    stored = {str(path) for path in (data_dir / "archives").rglob("*") if path.is_file()}
    assert any(archived.id in path and path.endswith("/home.tar.zst") for path in stored)
    access_reads = kept | stored
    for part, uid, own in (
        ("api", API, set()),
        ("gateway", GATEWAY, set()),
        ("access", ACCESS, access_reads),
    ):
        read = successes(read_from_namespaces(pids[part], uid, *paths, groups=[SERVERS]))
        contents = {path for path in read if not os.path.isdir(path)}
        assert contents - own <= public, part
        assert own <= contents, part
        closed = ("jobs", "logs", "runtime", "postgres", "redis", "volumes")
        closed += () if own else ("archives", "execs")
        assert not read & {str(data_dir / name) for name in closed}, part
        assert str(home) not in read
    for path in (data_dir / "archives", *(data_dir / "archives").rglob("*")):
        facts = path.stat()
        assert (facts.st_uid, facts.st_gid, facts.st_mode & 0o027) == (0, ACCESS, 0), path

    up = data_dir / "runtime" / owner.id / "up"
    workspaces = {str(up / "ide.sock"), str(up / "net.sock")}
    servers = {str(data_dir / "run" / "pg" / ".s.PGSQL.5432"), str(data_dir / "run" / "redis" / "redis.sock")}
    http = {str(data_dir / "run" / name) for name in ("api.sock", "access.sock")}
    entrances = {str(commands / name) for name in ("exec.sock", "net.sock")} | {str(command / "control.sock")}
    internal = {str(path) for path in (data_dir / "run").glob("*-internal.sock")}
    assert len(internal) == 4
    asked = [*workspaces, *servers, *internal, *http, *entrances]

    def reached(part: str, uid: int) -> set[str]:
        return successes(connect_from_namespaces(pids[part], uid, *asked, groups=[SERVERS]))

    assert reached("api", API) == servers
    assert reached("gateway", GATEWAY) == workspaces | servers | http
    assert reached("access", ACCESS) == servers | entrances
    assert reached("gateway", GATEWAY + 1_000_000) == servers, "the control: a stranger in the same group"


@pytest.mark.full
def test_a_workspace_that_started_when_the_gateway_was_root_is_served_after_an_upgrade(
    make_system: Callable[..., System], images: Path
) -> None:
    environment = {"IMAGES_FILE": str(images), "GATEWAY_WORKERS": "2"}
    system = make_system(**environment, API_UID="0", GATEWAY_UID="0").start()
    owner = Owner(system)
    wait_for(lambda: owner.is_in("RUNNING"), "the workspace to run")
    assert opens_ide(owner)
    assert all(
        Rights.of(pid).uids == {0} for name, pid in system.pids().items() if name in ("api", "gateway")
    )
    up = system.data_dir / "runtime" / owner.id / "up"
    (up / "net.sock").chmod(0o600)
    state = json.loads((up.parent / "state.json").read_text())
    assert up.stat().st_gid == 0

    system.stop()
    system._environment = environment
    system.start()
    assert has_users_of_its_own(system)
    assert opens_ide(owner)
    assert "Directory listing" in owner.navigate(APP_PORT).text
    assert json.loads((up.parent / "state.json").read_text()) == state


def certificate_at(port: int) -> str:
    return ssl.get_server_certificate(("127.0.0.1", port))


@pytest.mark.full
def test_a_certificate_that_only_root_may_read_is_served_and_renewed_on_a_low_port(
    make_system: Callable[..., System], images: Path, tmp_path: Path
) -> None:
    private = tmp_path / "tls"
    private.mkdir(mode=0o700)
    names = "DNS:localhost,DNS:*.localhost,IP:127.0.0.1"
    first, second = (issuing.issue(private, name, names=names) for name in ("first", "second"))
    live, key = private / "live.pem", private / "live.key"
    shutil.copy(first.chain, live)
    shutil.copy(first.key, key)
    key.chmod(0o600)
    port = free_low_port()
    system = make_system(PORT=str(port), TLS_CERT_FILE=str(live), TLS_KEY_FILE=str(key), GATEWAY_WORKERS="2")
    system.port = port
    system.start()
    assert has_users_of_its_own(system, NET_BIND_SERVICE)
    assert certificate_at(port).strip() == first.chain.read_text().strip()

    shutil.copy(second.key, key)
    shutil.copy(second.chain, live)
    wait_for(
        lambda: all(certificate_at(port).strip() == second.chain.read_text().strip() for _ in range(8)),
        "the renewed certificate",
    )
    copy = system.data_dir / "run" / "gateway" / "certificate.pem"
    readable = {
        uid: bool(successes(read_from_namespaces(system.pids()["gateway"], uid, str(copy), groups=[SERVERS])))
        for uid in (API, GATEWAY)
    }
    assert readable == {API: False, GATEWAY: True}
    assert system.stop() == 0
    assert not copy.exists()


def free_low_port() -> int:
    for port in range(1023, 600, -1):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("no low port is free")
