"""What control groups show of a workspace, and what replaces them. Plain files stand for groups."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from codehub.domain.observation import Unknown
from codehub.domain.resource_usage import Amount, CpuTime, ResourceUsage
from codehub.host.process_usage import TreeUsage, usage_below
from codehub.host.processes import ProcessId
from codehub.runtimes.process import resource_usage
from codehub.runtimes.process.resource_usage import complete, read_groups
from codehub.runtimes.process.state_directory import KeeperState

V2 = {
    "cpu.stat": "usage_usec 90500000\nuser_usec 1\nsystem_usec 2\n",
    "cpu.max": "150000 100000\n",
    "memory.current": "3000\n",
    "memory.stat": "anon 5\ninactive_file 1000\n",
    "memory.max": "4096\n",
    "pids.current": "17\n",
    "pids.max": "512\n",
}
V1 = {
    "cpu": {"cpu.stat": "nr_periods 9\n", "cpu.cfs_quota_us": "50000\n", "cpu.cfs_period_us": "100000\n"},
    "cpuacct": {"cpuacct.usage": "90500000000\n"},
    "memory": {
        "memory.usage_in_bytes": "3000\n",
        "memory.stat": "inactive_file 1\ntotal_inactive_file 1000\n",
        "memory.limit_in_bytes": "9223372036854771712\n",
    },
    "pids": {"pids.current": "17\n", "pids.max": "max\n"},
}
TREE = TreeUsage(12.5, 700, 3)


def group(directory: Path, files: Mapping[str, str]) -> str:
    directory.mkdir(parents=True)
    for name, text in files.items():
        (directory / name).write_text(text)
    return str(directory)


def test_version_2_has_everything_in_the_outermost_group(tmp_path: Path) -> None:
    outer = group(tmp_path / "w1", V2)
    inner = group(tmp_path / "w1" / "run", {"cpu.stat": "usage_usec 1\n", "pids.current": "1\n"})
    assert read_groups("op1", [outer, inner]) == ResourceUsage(
        "op1 groups", CpuTime(90.5, 1.5), Amount(2000, 4096), Amount(17, 512)
    )


def test_version_1_has_a_group_for_each_controller(tmp_path: Path) -> None:
    groups = [group(tmp_path / name, files) for name, files in V1.items()]
    assert read_groups("op1", groups) == ResourceUsage(
        "op1 groups", CpuTime(90.5, 0.5), Amount(2000, None), Amount(17, None)
    )


def test_a_group_without_a_cap(tmp_path: Path) -> None:
    files = V2 | {"cpu.max": "max 100000\n", "memory.max": "max\n", "pids.max": "max\n"}
    usage = read_groups("op1", [group(tmp_path / "w1", files)])
    assert usage.cpu == CpuTime(90.5, None)
    assert usage.memory == Amount(2000, None) and usage.processes == Amount(17, None)


@pytest.mark.parametrize(
    "garbage", ["", "\n", "many\n", "-5\n", "1e9\n", "9" * 40, "٣\n", "\x00\xff", "usage_usec\n", "7 7 7\n"]
)
def test_garbage_is_unknown_with_a_reason(tmp_path: Path, garbage: str) -> None:
    usage = read_groups("op1", [group(tmp_path / "w1", dict.fromkeys(V2, garbage))])
    for value in (usage.cpu, usage.memory, usage.processes):
        assert value == Unknown("No control group counts this workspace's resources.")


@pytest.mark.parametrize("garbage", ["", "many", "usage_usec x", "0 0"])
def test_garbage_in_a_cap_is_no_cap(tmp_path: Path, garbage: str) -> None:
    files = V2 | dict.fromkeys(("cpu.max", "memory.max", "pids.max", "memory.stat"), garbage)
    usage = read_groups("op1", [group(tmp_path / "w1", files)])
    assert usage.cpu == CpuTime(90.5, None)
    assert usage.memory == Amount(3000, None)
    assert usage.processes == Amount(17, None)


def test_a_group_that_is_gone_is_unknown(tmp_path: Path) -> None:
    usage = read_groups("op1", [str(tmp_path / "gone")])
    assert isinstance(usage.cpu, Unknown) and isinstance(usage.memory, Unknown)


def test_the_processes_replace_missing_groups() -> None:
    usage = complete(read_groups("op1", []), TREE)
    assert usage == ResourceUsage("op1 processes", CpuTime(12.5, None), Amount(700, None), Amount(3, None))


def test_counters_of_two_kinds_are_not_of_the_same_run(tmp_path: Path) -> None:
    """Otherwise one that is unreadable for a moment would look like CPU use."""
    groups = [group(tmp_path / "w1", {name: text for name, text in V2.items() if name != "cpu.stat"})]
    usage = complete(read_groups("op1", groups), TREE)
    assert usage.run != read_groups("op1", groups).run
    assert usage.cpu == CpuTime(12.5, None)
    assert usage.memory == Amount(2000, 4096), "the group counts it"


def test_without_groups_and_processes_everything_is_unknown() -> None:
    usage = complete(read_groups("op1", []), None)
    assert isinstance(usage.cpu, Unknown) and isinstance(usage.processes, Unknown)


def keeper_state() -> KeeperState:
    """Return the state of a workspace whose keeper is this process."""
    me = ProcessId.of(os.getpid())
    assert me is not None
    return KeeperState("op1", "image", "/", "none", None, "boot", me)


def test_measurements_end_when_their_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(100))
    monkeypatch.setattr(resource_usage.time, "monotonic", lambda: next(now))
    states = {f"w{number}": keeper_state() for number in range(9)}
    assert list(resource_usage.measure(states, 3)) == ["w0", "w1", "w2"]


def test_a_keeper_that_has_ended_has_no_processes() -> None:
    gone = replace(keeper_state(), keeper=ProcessId(2**22 + 1, 0))
    assert isinstance(resource_usage.measure({"w1": gone}, 3)["w1"].cpu, Unknown)


def test_a_process_that_does_not_exist_is_left_out() -> None:
    assert list(usage_below([os.getpid(), 2**22 + 1])) == [os.getpid()]
