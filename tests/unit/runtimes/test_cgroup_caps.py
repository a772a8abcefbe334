"""Where control groups can be created, and their settings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from codehub.runtimes.process import cgroup_caps, cgroups
from codehub.runtimes.process.cgroup_caps import Caps, Cgroups, DiskCap, find_cgroups

CAPS = Caps(cpus=1.5, memory_bytes=2 << 30, pids=100)
ALL = "cpu memory pids"


def mount(kind: str, path: Path, options: str = "rw", inside: str = "/") -> str:
    return f"30 20 0:1 {inside} {path} rw,nosuid - {kind} {kind} {options}\n"


def group(path: Path, offered: str = ALL, delegated: str = "") -> Path:
    """Create a group of version 2 from plain files, which do not react to writes."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "cgroup.controllers").write_text(f"{offered}\n")
    (path / "cgroup.subtree_control").write_text(f"{delegated}\n")
    (path / "cgroup.procs").touch()
    return path


def test_version_1_has_a_hierarchy_for_each_controller(tmp_path: Path) -> None:
    for name in ("cpu,cpuacct", "memory", "pids"):
        (tmp_path / name).mkdir()
    text = mount("cgroup", tmp_path / "cpu,cpuacct", "rw,cpu,cpuacct")
    text += mount("cgroup", tmp_path / "memory", "rw,memory") + mount("cgroup", tmp_path / "pids", "rw,pids")
    found = find_cgroups(text, "1:cpu,cpuacct:/a\n2:memory:/b\n3:pids:/\n", is_root=True)
    assert found.version == 1 and found.why_not_all == ""
    assert found.parents == {
        "cpu": f"{tmp_path}/cpu,cpuacct/codehub",
        "memory": f"{tmp_path}/memory/codehub",
        "pids": f"{tmp_path}/pids/codehub",
    }
    assert cgroup_caps.group_settings(found, "w1", CAPS) == {
        f"{tmp_path}/cpu,cpuacct/codehub/w1": {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "150000"},
        f"{tmp_path}/memory/codehub/w1": {
            "memory.limit_in_bytes": "2147483648",
            "memory.memsw.limit_in_bytes": "2147483648",
        },
        f"{tmp_path}/pids/codehub/w1": {"pids.max": "100"},
    }
    assert found.keeper_groups == ()


DISK = replace(CAPS, disk=DiskCap("254:0", 50_000_000))


def test_a_disk_is_capped_where_version_1_has_groups_for_it(tmp_path: Path) -> None:
    (tmp_path / "pids").mkdir()
    (tmp_path / "blkio").mkdir()
    text = mount("cgroup", tmp_path / "pids", "rw,pids") + mount("cgroup", tmp_path / "blkio", "rw,blkio")
    found = find_cgroups(text, "1:pids:/\n2:blkio:/\n", is_root=True)
    assert found.io_parent == f"{tmp_path}/blkio/codehub"
    assert found.every_parent == {f"{tmp_path}/blkio/codehub", f"{tmp_path}/pids/codehub"}
    assert cgroup_caps.group_settings(found, "w1", DISK)[f"{tmp_path}/blkio/codehub/w1"] == {
        "blkio.throttle.read_bps_device": "254:0 50000000",
        "blkio.throttle.write_bps_device": "254:0 50000000",
    }
    assert list(cgroup_caps.group_settings(found, "w1", CAPS)) == [f"{tmp_path}/pids/codehub/w1"]


def test_version_2_caps_a_disk_in_the_group_of_all_caps(tmp_path: Path) -> None:
    group(tmp_path, offered=f"{ALL} io", delegated=f"{ALL} io")
    group(tmp_path / "codehub", offered=f"{ALL} io", delegated=f"{ALL} io")
    found = find_cgroups(mount("cgroup2", tmp_path), "0::/a\n", is_root=True)
    assert found.io_parent == f"{tmp_path}/codehub"
    planned = cgroup_caps.group_settings(found, "w1", DISK)[f"{tmp_path}/codehub/w1"]
    assert planned["io.max"] == "254:0 rbps=50000000 wbps=50000000"
    assert planned["pids.max"] == "100"


def test_version_2_caps_no_disk_if_io_is_not_delegated(tmp_path: Path) -> None:
    group(tmp_path, offered=ALL, delegated=ALL)
    group(tmp_path / "codehub", offered=ALL, delegated=ALL)
    found = find_cgroups(mount("cgroup2", tmp_path), "0::/a\n", is_root=True)
    assert found.io_parent is None and found.why_not_all == ""
    assert "io.max" not in cgroup_caps.group_settings(found, "w1", DISK)[f"{tmp_path}/codehub/w1"]


def test_other_users_than_root_use_their_own_group_of_version_1(tmp_path: Path) -> None:
    (tmp_path / "pids" / "user" / "me").mkdir(parents=True)
    text = mount("cgroup", tmp_path / "pids", "rw,pids", inside="/outer")
    found = find_cgroups(text, "3:pids:/outer/user/me\n", is_root=False)
    assert found.parents == {"pids": f"{tmp_path}/pids/user/me/codehub"}
    assert "cpu is not mounted" in found.why_not_all and "memory is not mounted" in found.why_not_all


def test_a_read_only_hierarchy_is_reported(tmp_path: Path) -> None:
    (tmp_path / "pids").write_text("not a directory")
    found = find_cgroups(mount("cgroup", tmp_path / "pids", "rw,pids"), "3:pids:/\n", is_root=True)
    assert found.parents == {} and "pids: " in found.why_not_all
    assert cgroup_caps.group_settings(found, "w1", CAPS) == {}


def test_version_2_has_one_group_for_all(tmp_path: Path) -> None:
    group(tmp_path, delegated=ALL)
    group(tmp_path / "codehub", delegated=ALL)
    found = find_cgroups(mount("cgroup2", tmp_path), "0::/system.slice/codehub.service\n", is_root=True)
    parents = dict.fromkeys(ALL.split(), f"{tmp_path}/codehub")
    assert found == Cgroups(2, parents, keeper_groups=(f"{tmp_path}/codehub/keepers",))
    assert cgroup_caps.group_settings(found, "w1", CAPS) == {
        f"{tmp_path}/codehub/w1": {
            "cpu.max": "150000 100000",
            "memory.max": "2147483648",
            "memory.swap.max": "0",
            "pids.max": "100",
            "cgroup.max.depth": "16",
            "cgroup.max.descendants": "256",
        },
        f"{tmp_path}/codehub/w1/run": {},
    }


def test_a_delegated_service_delegates_from_the_parent_of_codehubs_group(tmp_path: Path) -> None:
    """As systemd's Delegate= and DelegateSubgroup= create it: only our own group has processes."""
    service = group(tmp_path / "codehub.service", offered="memory pids", delegated="memory pids")
    group(service / "main", offered="memory pids")
    group(service / "codehub", offered="memory pids", delegated="memory pids")
    found = find_cgroups(mount("cgroup2", tmp_path), "0::/codehub.service/main\n", is_root=False)
    assert found.parents == dict.fromkeys(("memory", "pids"), f"{service}/codehub")
    assert found.why_not_all == f"no cpu in {service}"
    assert found.keeper_groups == (f"{service}/codehub/keepers",)


def test_a_group_with_processes_delegates_nothing(tmp_path: Path) -> None:
    group(tmp_path / "codehub.service")
    found = find_cgroups(mount("cgroup2", tmp_path), "0::/codehub.service\n", is_root=False)
    assert found.parents == {} and "codehub.service" in found.why_not_all
    assert not (tmp_path / "codehub.service" / "codehub").exists()


def test_no_control_groups_at_all() -> None:
    assert find_cgroups("20 1 0:2 / / rw - ext4 /dev/vda rw\n", "", is_root=True).why_not_all != ""


def test_a_hybrid_machine_uses_the_hierarchies_that_have_controllers(tmp_path: Path) -> None:
    (tmp_path / "pids").mkdir()
    text = mount("cgroup", tmp_path / "pids", "rw,pids") + mount("cgroup2", group(tmp_path / "unified", ""))
    assert find_cgroups(text, "3:pids:/\n0::/\n", is_root=True).version == 1


def test_under_root_keepers_leave_the_groups_in_which_systemd_tracks_its_services(
    tmp_path: Path,
) -> None:
    for name in ("pids", "systemd"):
        (tmp_path / name).mkdir()
    text = mount("cgroup", tmp_path / "pids", "rw,pids")
    text += mount("cgroup", tmp_path / "systemd", "rw,xattr,name=systemd")
    text += mount("cgroup2", group(tmp_path / "unified", ""))
    own = "3:pids:/codehub.service\n1:name=systemd:/codehub.service\n0::/codehub.service\n"
    expected = (f"{tmp_path}/systemd/codehub/keepers", f"{tmp_path}/unified/codehub/keepers")
    assert find_cgroups(text, own, is_root=True).keeper_groups == expected
    assert find_cgroups(text, own, is_root=False).keeper_groups == ()
    (tmp_path / "systemd" / "codehub").rmdir()
    (tmp_path / "systemd").rmdir()
    (tmp_path / "systemd").write_text("not a directory, so nothing can be created")
    assert find_cgroups(text, own, is_root=True).keeper_groups == expected[1:]


def test_a_resource_that_the_kernel_does_not_count_is_not_capped(tmp_path: Path) -> None:
    plan = {f"{tmp_path}/w1": {"memory.max": "5", "memory.swap.max": "0"}}
    cgroups.create(plan)
    assert [file.name for file in (tmp_path / "w1").iterdir()] == ["memory.max"]
    (tmp_path / "w1" / "memory.swap.max").touch()
    cgroups.create(plan)
    assert (tmp_path / "w1" / "memory.swap.max").read_text() == "0"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("memory.events", "low 0\noom 7\noom_kill 3\n"),
        ("memory.oom_control", "under_oom 0\noom_kill_disable 0\noom_kill 3\n"),
    ],
)
def test_out_of_memory_kills_are_counted(tmp_path: Path, name: str, text: str) -> None:
    assert cgroups.out_of_memory_kills([str(tmp_path)]) == 0
    (tmp_path / name).write_text(text)
    assert cgroups.out_of_memory_kills([str(tmp_path), f"{tmp_path}/gone"]) == 3


def test_a_tiny_share_of_a_processor_is_raised_to_the_kernels_minimum() -> None:
    plan = cgroup_caps.group_settings(Cgroups(2, {"cpu": "/p"}), "w1", Caps(0.001, 1, 1))
    assert plan["/p/w1"]["cpu.max"] == "1000 100000"


def test_a_process_joins_the_innermost_groups_alone(tmp_path: Path) -> None:
    """Version 2 delegates no controllers below a group that has processes."""
    groups = [group(tmp_path / name) for name in ("w1", "w1/run", "other")]
    cgroups.join(map(str, groups), 123)
    assert [(path / "cgroup.procs").read_text() for path in groups] == ["", "123", "123"]
