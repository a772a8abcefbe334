"""Resource limits of a process workspace, and the lifecycle of its control groups."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from codehub.domain.images import MOST_PIDS, Image
from codehub.host.processes import ProcessId, descendants
from codehub.runtimes.base import RuntimeFailure
from codehub.runtimes.block_device import disk_of
from codehub.runtimes.open_files import open_files
from codehub.runtimes.process import cgroup_caps, cgroups
from codehub.runtimes.process.cgroup_caps import NO_CGROUPS, Caps, Cgroups
from codehub.runtimes.process.network import MAX_CONNECTIONS
from tests.integration.runtimes.conftest import (
    ALONE,
    DELEGATE,
    SERVER,
    TINY,
    RuntimeFixture,
    only_programs,
    script_image,
)
from tests.waiting import eventually

FORK_BOMB = """
import os
while True:
    try:
        os.fork()
    except OSError:
        pass
"""


@pytest.fixture
async def capped(fixture: RuntimeFixture) -> RuntimeFixture:
    if set((await fixture.runtime.barriers()).cgroups.parents) != {"cpu", "memory", "pids"}:
        pytest.skip("needs control groups that may be made: run as root, with /sys/fs/cgroup writable")
    return fixture


def small(image: Image, mebibytes: int = 64) -> Image:
    return replace(image, memory_bytes=mebibytes << 20)


def groups_of(fixture: RuntimeFixture, workspace_id: str) -> list[Path]:
    state = fixture.directory(workspace_id).read_state()
    assert state is not None and state.groups
    return [Path(group) for group in state.groups]


def setting(groups: list[Path], *names: str) -> str:
    """Return the contents of the one that exists: versions 1 and 2 have different names."""
    (file,) = [group / name for group in groups for name in names if (group / name).exists()]
    return file.read_text().strip()


async def test_the_caps_of_the_image_apply_to_the_whole_tree_from_its_start(
    capped: RuntimeFixture,
) -> None:
    # The child waits: a second server might take the socket, and the workspace would end with the
    # first.
    two = "import os, time\nif os.fork() == 0:\n    time.sleep(600)\n" + SERVER
    image = replace(script_image(two, "{socket}"), cpus=0.5, memory_bytes=96 << 20)
    await capped.runtime.start(capped.spec("w1", image))
    state = capped.directory("w1").read_state()
    groups = groups_of(capped, "w1")
    assert state is not None
    keeper = state.keeper.pid

    async def mismatches() -> list[set[ProcessId]]:
        """Return processes that are only in the tree or only in a group."""
        return [cgroups.members([str(group)]) ^ set(descendants(keeper)) for group in groups]

    # While the tree is starting, the two reads may differ.
    await eventually(mismatches, "the groups to hold the tree", lambda found: not any(found))
    assert setting(groups, "cpu.max", "cpu.cfs_quota_us").split()[0] == "50000"
    assert setting(groups, "memory.max", "memory.limit_in_bytes") == str(96 << 20)
    assert int(setting(groups, "pids.max")) in (202, 203), "200 for the workspace, and its sandbox and helper"


async def test_the_disk_bandwidth_of_the_image_is_set_for_its_homes_disk(capped: RuntimeFixture) -> None:
    disk = disk_of(capped.data_dir)
    if disk is None or (await capped.runtime.barriers()).cgroups.io_parent is None:
        pytest.skip("needs control groups for disks, and homes on a disk")
    await capped.started("w1", replace(TINY, disk_bandwidth=50 << 20))
    groups = groups_of(capped, "w1")
    limits = {setting(groups, "io.max", f"blkio.throttle.{way}_bps_device") for way in ("read", "write")}
    assert all(limit.startswith(disk.number) and str(50 << 20) in limit for limit in limits)
    assert all(cgroups.members([str(group)]) for group in groups if not (group / "run").exists())


async def test_a_workspace_has_no_more_open_files_than_a_process_needs(fixture: RuntimeFixture) -> None:
    """CodeHub raises its own limit to the maximum, and a workspace would inherit that."""
    await fixture.started("w1")
    assert (await fixture.inside("w1", "ulimit -Sn; ulimit -Hn")).split() == [str(open_files())] * 2


@pytest.mark.usefixtures("own_network")
async def test_the_connections_of_a_workspace_are_bounded_by_its_helpers_files(
    fixture: RuntimeFixture,
) -> None:
    await fixture.started("w1")
    state = fixture.directory("w1").read_state()
    assert state is not None
    processes = descendants(state.keeper.pid)
    [helper] = [process for process in processes if _program(process) == "slirp4netns"]
    limits = Path(f"/proc/{helper.pid}/limits").read_text()
    assert re.search(rf"^Max open files +{MAX_CONNECTIONS} +{MAX_CONNECTIONS} ", limits, re.MULTILINE)


def _program(process: ProcessId) -> str:
    return Path(f"/proc/{process.pid}/comm").read_text().strip()


async def test_groups_go_with_the_last_process(capped: RuntimeFixture) -> None:
    await capped.started("w1")
    groups = groups_of(capped, "w1")
    await capped.runtime.stop("w1")
    assert not [group for group in groups if group.exists()]


async def test_keepers_and_workspaces_leave_codehubs_service(capped: RuntimeFixture) -> None:
    """systemd ends the processes in the service's group of its own hierarchy, or of version 2."""
    mounted = (await capped.runtime.barriers()).cgroups.keeper_groups
    if not mounted:
        pytest.skip("needs systemd's own hierarchy of control groups, or version 2")
    await capped.started("w1")
    state = capped.directory("w1").read_state()
    assert state is not None
    tree = {state.keeper, *descendants(state.keeper.pid)}
    for hierarchy in ("name=systemd:", "0::"):
        groups = {group for process in tree for group in _groups_of_process(process, hierarchy)}
        assert all(group.startswith("/codehub/") for group in groups), groups


def _groups_of_process(process: ProcessId, hierarchy: str) -> list[str]:
    lines = Path(f"/proc/{process.pid}/cgroup").read_text().splitlines()
    return [line.rpartition(":")[2] for line in lines if hierarchy in line]


async def test_running_out_of_memory_is_reported(capped: RuntimeFixture) -> None:
    greedy = script_image("hoard = []\nwhile True: hoard.append(bytearray(1 << 20))")
    await capped.runtime.start(capped.spec("w1", small(greedy)))
    fact = await capped.until("w1", lambda fact: not fact.running)
    assert fact.message == "it ran out of memory (64 MiB), exit code 137"


async def test_the_ide_survives_a_greedy_child(capped: RuntimeFixture) -> None:
    await capped.started("w1", small(TINY))
    output = await capped.inside("w1", "python3 -c 'x = [bytearray(1 << 20) for _ in range(200)]'; echo $?")
    assert "137" in output
    await capped.until("w1", lambda fact: fact.ready)


@pytest.mark.parametrize("programs", [("bwrap", "setpriv"), ("setpriv",)], ids=["sandbox", "user"])
async def test_a_stop_ends_a_fork_bomb(
    capped: RuntimeFixture, programs: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    only_programs(capped, monkeypatch, *programs)
    capped.runtime = capped.another_runtime()
    await capped.runtime.start(capped.spec("w1", replace(script_image(FORK_BOMB), pids=40)))
    groups = [str(group) for group in groups_of(capped, "w1")]

    async def processes() -> set[ProcessId]:
        return cgroups.members(groups)

    bomb = await eventually(processes, "the bomb to be full", lambda found: len(found) >= 40)
    assert len(bomb) <= 43
    await capped.runtime.stop("w1")
    assert not (await capped.runtime.status("w1")).running
    assert not [group for group in groups if Path(group).exists()]


@pytest.mark.parametrize("state", ["readable", "garbage"])
@pytest.mark.parametrize("step", ["start", "delete"])
async def test_processes_that_a_killed_keeper_leaves_are_killed_by_their_group(
    capped: RuntimeFixture, state: str, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a sandbox a daemon outlives its keeper. Only the group shows its workspace."""
    only_programs(capped, monkeypatch, "setpriv")
    capped.runtime = capped.another_runtime()
    spec = await capped.started(ALONE)
    groups = groups_of(capped, ALONE)
    await capped.inside(ALONE, "env -i setsid nohup sleep 601 >/dev/null 2>&1 & disown")
    known = capped.directory(ALONE).read_state()
    assert known is not None
    known.keeper.send(signal.SIGKILL)

    async def left() -> set[ProcessId]:
        return cgroups.members(map(str, groups))

    await eventually(left, "the daemon alone to be left", lambda found: len(found) == 1)
    if state == "garbage":
        capped.directory(ALONE).state_file.write_text("garbage")
    if step == "start":
        await capped.runtime.start(spec)
        assert 601 not in [_seconds_of(process) for process in await left()]
    else:
        await capped.runtime.delete(ALONE)
        assert not [group for group in groups if group.exists()]


def _seconds_of(process: ProcessId) -> int | None:
    arguments = Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")
    return int(arguments[1]) if arguments[0] == b"sleep" else None


async def test_an_empty_leftover_group_is_removed(capped: RuntimeFixture) -> None:
    await capped.started("w1")
    groups = groups_of(capped, "w1")
    state = capped.directory("w1").read_state()
    assert state is not None
    state.keeper.send(signal.SIGKILL)
    await capped.until("w1", lambda fact: not fact.running)
    assert [group for group in groups if group.exists()]
    await capped.runtime.delete("w1")
    assert not [group for group in groups if group.exists()]


async def test_an_orphaned_group_is_removed(capped: RuntimeFixture) -> None:
    await capped.started("w1")
    parents = [str(group.parent) for group in groups_of(capped, "w1")]
    forgotten = [Path(parent, f"forgotten-{capped.data_dir.name}") for parent in parents]
    for group in forgotten:
        (group / "run").mkdir(parents=True)
    cgroups.sweep(parents, older_than=600)
    assert [group for group in forgotten if group.exists()] == forgotten
    for group in forgotten:
        os.utime(group, (0, 0))
    cgroups.sweep(parents, older_than=600)
    assert not [group for group in forgotten if group.exists()]
    await capped.until("w1", lambda fact: fact.ready)


async def test_groups_that_can_no_longer_be_created_do_not_fail_a_start(
    capped: RuntimeFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = Cgroups(1, {"memory": "/nonexistent", "pids": "/nonexistent"})
    barriers = replace(await capped.runtime.barriers(), cgroups=gone)
    monkeypatch.setattr(capped.runtime, "_barriers", barriers)
    await capped.started("w1", small(TINY))
    assert "not all caps of its image hold: [Errno 2]" in await capped.runtime.logs("w1", 1000)
    assert (await capped.inside("w1", "ulimit -u; ulimit -d")).split() == ["200", str(64 << 10)]


async def test_a_group_that_cannot_be_created_affects_no_other(
    capped: RuntimeFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    barriers = await capped.runtime.barriers()
    some = Cgroups(1, {**barriers.cgroups.parents, "cpu": "/nonexistent"})
    if barriers.cgroups.version == 2:
        pytest.skip("needs control groups of version 1: version 2 has one for all")
    monkeypatch.setattr(capped.runtime, "_barriers", replace(barriers, cgroups=some))
    await capped.started("w1", small(TINY))
    groups = [group for group in groups_of(capped, "w1") if group.exists()]
    assert len(groups) == 2 and all(cgroups.members([str(group)]) for group in groups)
    assert await capped.inside("w1", "ulimit -d") == "unlimited\n", "there is a group for that"
    assert "/nonexistent" in await capped.runtime.logs("w1", 1000)


@pytest.fixture
async def half_a_processor(capped: RuntimeFixture) -> AsyncIterator[str]:
    """A parent group with a cap, as a container has it with version 1."""
    found = (await capped.runtime.barriers()).cgroups
    if found.version == 2:
        pytest.skip("needs control groups of version 1: version 2 takes any number")
    group = Path(found.parents["cpu"], f"half-{capped.data_dir.name}")
    cgroups.create({str(group): {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "50000"}})
    yield str(group)
    await capped.runtime.stop("w1")
    group.rmdir()


async def test_a_smaller_cap_of_a_parent_group_applies_with_all_other_caps(
    capped: RuntimeFixture, half_a_processor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    barriers = await capped.runtime.barriers()
    below = Cgroups(1, {**barriers.cgroups.parents, "cpu": half_a_processor})
    monkeypatch.setattr(capped.runtime, "_barriers", replace(barriers, cgroups=below))
    await capped.started("w1", replace(small(TINY), cpus=2.0))
    groups = groups_of(capped, "w1")
    assert len(groups) == 3 and all(cgroups.members([str(group)]) for group in groups)
    assert setting(groups, "memory.limit_in_bytes") == str(64 << 20)
    assert "capped" not in await capped.runtime.logs("w1", 1000)


async def test_a_value_that_the_kernel_rejects_fails_the_start_and_is_named(
    capped: RuntimeFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = (await capped.runtime.barriers()).cgroups
    group = Path(found.parents["pids"], f"refused-{capped.data_dir.name}")
    monkeypatch.setattr(cgroup_caps, "group_settings", lambda *_: {str(group): {"pids.max": "4194305"}})
    with pytest.raises(RuntimeFailure, match=r"no cap of 4194305 \(for pids.max\): see `cpus`"):
        await capped.runtime.start(capped.spec("w1"))
    assert not group.exists() and not (await capped.runtime.status("w1")).running


async def test_the_kernel_accepts_the_largest_number_of_processes(capped: RuntimeFixture) -> None:
    await capped.started("w1", replace(TINY, pids=MOST_PIDS))
    assert setting(groups_of(capped, "w1"), "pids.max") == str(MOST_PIDS)


async def test_without_groups_limits_apply_to_the_user_and_each_process(
    fixture: RuntimeFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        fixture.runtime, "_barriers", replace(await fixture.runtime.barriers(), cgroups=NO_CGROUPS)
    )
    await fixture.started("w1", small(TINY))
    greedy = "import subprocess\nwhile True: subprocess.Popen(['sleep', '60'])"
    output = await fixture.inside("w1", f'python3 -c "{greedy}"; pkill sleep')
    assert "Resource temporarily unavailable" in output
    assert "MemoryError" in await fixture.inside("w1", "python3 -c 'bytearray(200 << 20)'")
    assert (await fixture.inside("w1", "ulimit -c; ulimit -v")).split() == ["0", "unlimited"]
    await fixture.until("w1", lambda fact: fact.ready)


@pytest.fixture
def version_2() -> Iterator[Path]:
    """A group of version 2, with or without controllers."""
    groups = [Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified")]
    mounted = [group for group in groups if (group / "cgroup.subtree_control").exists()]
    if os.geteuid() != 0 or not mounted:
        pytest.skip("needs root and control groups of version 2")
    group = mounted[0] / f"codehub-test-{os.getpid()}"
    yield group
    for process in cgroups.members([str(group)]):
        process.send(signal.SIGKILL)
    cgroups.remove([str(group)])


def test_a_group_of_version_2_lists_its_members_and_is_removed(version_2: Path) -> None:
    name = str(version_2)
    cgroups.create({name: {}})
    with subprocess.Popen(["sleep", "60"], preexec_fn=lambda: cgroups.join([name])) as sleeper:
        assert [process.pid for process in cgroups.members([name])] == [sleeper.pid]
        cgroups.forbid_forks([name])
        sleeper.kill()
        sleeper.wait()
    cgroups.remove([name])
    assert not version_2.exists()
    assert cgroups.members([name]) == set()


MAKE_GROUPS = """
import os, signal
assert os.system("mount -t tmpfs none /tmp && mkdir /tmp/top && mount -t cgroup2 none /tmp/top") == 0
for limit in ("depth", "descendants"):
    open(f"/tmp/top/cgroup.max.{limit}", "w").write("max")
os.makedirs("/tmp/top/a/b")
os.makedirs("/tmp/top/threads")
try:
    while True:
        os.mkdir(f"/tmp/top/{len(os.listdir('/tmp/top'))}")
except OSError as error:
    print(error.strerror, flush=True)
open("/tmp/top/a/b/cgroup.procs", "w").write("0")
open("/tmp/top/threads/cgroup.type", "w").write("threaded")
for path in ("a/b/cgroup.procs", "a/b", "a", "cgroup.procs", ""):
    os.chmod(f"/tmp/top/{path}", 0)
print("done", flush=True)
signal.pause()
"""
MAKE = "cgroups.create(json.loads(sys.argv[1]))"
END = "kill_stale_processes('w1', None, 'sandbox', None, sys.argv[1:])"


def test_groups_that_a_workspace_created_end_with_it(version_2: Path) -> None:
    """Without root a workspace runs as CodeHub's user, who can create groups as well."""
    version_2.mkdir()
    for path in (version_2, version_2 / "cgroup.procs", version_2 / "cgroup.subtree_control"):
        os.chown(path, DELEGATE, DELEGATE)
    plan = cgroup_caps.group_settings(Cgroups(2, {"pids": str(version_2)}), "w1", Caps(1, 1 << 30, 100))
    as_delegate(MAKE, json.dumps({group: _core(settings) for group, settings in plan.items()}))
    with workspace_of_delegate(version_2 / "w1" / "run", MAKE_GROUPS) as workspace:
        assert workspace.stdout is not None
        lines = [workspace.stdout.readline() for _ in range(2)]
        assert lines == ["Resource temporarily unavailable\n", "done\n"]
        as_delegate(END, *plan)
    assert not (version_2 / "w1").exists()


def _core(settings: dict[str, str]) -> dict[str, str]:
    """Return the settings that version 2 has even without controllers."""
    return {name: value for name, value in settings.items() if name.startswith("cgroup.")}


def as_delegate(code: str, *arguments: str) -> None:
    prelude = (
        "import json, os, sys\n"
        "from codehub.runtimes.process import cgroups\n"
        "from codehub.runtimes.process.stale_processes import kill_stale_processes\n"
        f"os.setgroups([]); os.setresgid(*[{DELEGATE}] * 3); os.setresuid(*[{DELEGATE}] * 3)\n"
    )
    subprocess.run([sys.executable, "-c", prelude + code, *arguments], check=True)


@contextmanager
def workspace_of_delegate(group: Path, code: str) -> Iterator[subprocess.Popen[str]]:
    """Run a program as root of a new user namespace, which any user can create."""
    user = f"setpriv --reuid {DELEGATE} --regid {DELEGATE} --clear-groups"
    script = f'echo $$ > {group}/cgroup.procs && exec {user} unshare -UrmC /usr/bin/python3 -c "$0"'
    with subprocess.Popen(["/bin/sh", "-c", script, code], stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()
