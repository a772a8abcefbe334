"""The configuration of a workspace's container."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from codehub.domain.images import BUILT_IN
from codehub.runtimes.base import WorkloadSpec
from codehub.runtimes.docker.container_config import (
    ContainerSettings,
    Label,
    container_config,
    container_files,
    desired_hash,
    name_of,
)
from codehub.runtimes.docker.seccomp import profile

IMAGE = replace(BUILT_IN[0], cpus=1.5, memory_bytes=512 << 20, pids=99)
SETTINGS = ContainerSettings(2_000_007, Path("/data/runtime/.docker"))
SPEC = WorkloadSpec("w1", IMAGE, Path("/data/home"), "op1-0", 2_000_007)


def config(spec: WorkloadSpec = SPEC) -> dict[str, Any]:
    return container_config(spec, SETTINGS, "installation", "a-network", "10.222.0.2")


def test_caps_are_the_images() -> None:
    host = config()["HostConfig"]
    assert (host["NanoCpus"], host["PidsLimit"]) == (1_500_000_000, 99)
    assert host["Memory"] == host["MemorySwap"] == 512 << 20


def test_nothing_is_published_and_no_privilege_is_given() -> None:
    host = config()["HostConfig"]
    assert not {"PortBindings", "PublishAllPorts", "Privileged", "CapAdd", "Devices", "Binds"} & set(host)
    assert host["CapDrop"] == ["ALL"]
    assert host["SecurityOpt"] == ["no-new-privileges:true", f"seccomp={profile()}"]
    assert config()["User"] == "2000007:2000007"


def test_an_image_can_be_without_a_filter_of_system_calls() -> None:
    host = config(replace(SPEC, image=replace(IMAGE, seccomp="unconfined")))["HostConfig"]
    assert host["SecurityOpt"] == ["no-new-privileges:true", "seccomp=unconfined"]


def test_without_a_table_of_calls_the_engines_own_profile_applies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("codehub.runtimes.docker.container_config.machine", lambda: None)
    assert config()["HostConfig"]["SecurityOpt"] == ["no-new-privileges:true"]


def test_the_disk_of_the_home_is_limited_if_the_image_says_so() -> None:
    limited = replace(SPEC, image=replace(IMAGE, disk_bandwidth=50 << 20))
    host = container_config(limited, replace(SETTINGS, disk="/dev/sda"), "i", "n", "10.222.0.2")["HostConfig"]
    assert (
        host["BlkioDeviceReadBps"] == host["BlkioDeviceWriteBps"] == [{"Path": "/dev/sda", "Rate": 50 << 20}]
    )
    assert "BlkioDeviceReadBps" not in config(limited)["HostConfig"], "if the disk is not known"


@pytest.mark.parametrize(("ours", "expected"), [(1 << 20, 65536), (-1, 65536), (20_000, 20_000)])
def test_open_files_are_bounded_by_what_codehub_itself_may_have(
    monkeypatch: pytest.MonkeyPatch, ours: int, expected: int
) -> None:
    """An engine rejects a limit above its own."""
    monkeypatch.setattr("resource.getrlimit", lambda limit: (1024, ours))
    limit = {"Name": "nofile", "Soft": expected, "Hard": expected}
    assert config()["HostConfig"]["Ulimits"] == [limit]


def test_the_home_is_a_mount_which_fails_on_a_missing_one() -> None:
    home, *others = config()["HostConfig"]["Mounts"]
    assert home == {"Type": "bind", "Source": "/data/home", "Target": "/home/coder"}
    assert all(mount["ReadOnly"] for mount in others)


def test_the_engine_restarts_nothing_and_keeps_little_output() -> None:
    host = config()["HostConfig"]
    assert host["RestartPolicy"] == {"Name": "no"}
    assert host["LogConfig"]["Type"] == "local"
    assert host["LogConfig"]["Config"] == {"max-size": "1m", "max-file": "2", "compress": "false"}


def test_shared_memory_is_an_eighth_of_the_memory_with_a_bounded_number_of_files() -> None:
    size = 64 << 20
    options = f"mode=1777,size={size},nr_inodes={size // 8192}"
    assert config()["HostConfig"]["Tmpfs"] == {"/dev/shm": options}


def test_further_variables_are_part_of_the_configuration() -> None:
    changed = replace(SETTINGS, variables={"VSCODE_PROXY_URI": "./proxy/{{port}}/"})
    created = container_config(SPEC, changed, "installation", "a-network", "10.222.0.2")
    assert "VSCODE_PROXY_URI=./proxy/{{port}}/" in created["Env"]
    assert created["Labels"][Label.CONFIG] == desired_hash(SPEC, changed) != desired_hash(SPEC, SETTINGS)


def test_labels_identify_installation_and_workspace() -> None:
    labels = config()["Labels"]
    assert labels[Label.INSTALLATION] == "installation"
    assert labels[Label.WORKSPACE] == "w1"
    assert labels[Label.OP_ID] == "op1-0"
    assert labels[Label.CONFIG] == desired_hash(SPEC, SETTINGS)
    assert name_of("w1") == "codehub-ws-w1"


def test_a_container_has_its_address_only_in_its_own_network() -> None:
    assert config()["HostConfig"]["NetworkMode"] == "a-network"
    endpoints = config()["NetworkingConfig"]["EndpointsConfig"]
    assert endpoints == {"a-network": {"IPAMConfig": {"IPv4Address": "10.222.0.2"}}}


def test_the_host_name_contains_the_workspaces_name() -> None:
    assert config(replace(SPEC, name="My Project"))["Hostname"] == "my-project"
    assert config(replace(SPEC, name="한글"))["Hostname"] == "w1"


def test_a_rename_does_not_replace_a_running_container() -> None:
    renamed = replace(SPEC, name="another name")
    assert desired_hash(renamed, SETTINGS) == desired_hash(SPEC, SETTINGS)
    assert config(renamed)["Labels"] == config(SPEC)["Labels"]


def test_another_attempt_is_the_same_configuration() -> None:
    assert desired_hash(replace(SPEC, op_id="op2-1"), SETTINGS) == desired_hash(SPEC, SETTINGS)


@pytest.mark.parametrize(
    "changed",
    [
        replace(SPEC, home=Path("/data/elsewhere")),
        replace(SPEC, image=replace(IMAGE, docker="another:1")),
        replace(SPEC, image=replace(IMAGE, memory_bytes=1 << 30)),
        replace(SPEC, image=replace(IMAGE, cpus=2.0)),
        replace(SPEC, image=replace(IMAGE, pids=100)),
        replace(SPEC, image=replace(IMAGE, port=9000)),
    ],
)
def test_a_relevant_change_changes_the_hash(changed: WorkloadSpec) -> None:
    assert desired_hash(changed, SETTINGS) != desired_hash(SPEC, SETTINGS)


def test_the_user_id_has_a_name_and_the_ide_has_no_password() -> None:
    texts = container_files(2_000_007, 9000, "name")
    assert "coder:x:2000007:2000007::/home/coder:" in texts["/etc/passwd"]
    assert "bind-addr: 0.0.0.0:9000\nauth: none\n" in texts["/etc/codehub/code-server.yaml"]


@pytest.mark.parametrize("name", ["한글 😀", 'quoted " \\ and # hashed: [x]', "true", "\ufffe"])
def test_the_ide_shows_the_workspaces_name(name: str) -> None:
    """A line of YAML whose value is written as JSON, so that a name adds no other setting."""
    lines = container_files(2_000_007, 9000, name)["/etc/codehub/code-server.yaml"].splitlines()
    (line,) = [line for line in lines if line.startswith("app-name: ")]
    assert line.isascii() and json.loads(line.removeprefix("app-name: ")) == name
    assert len(lines) == 8
