"""What a workspace writes to in memory is smaller than its memory: full, it ends no process."""

from __future__ import annotations

from dataclasses import replace

import pytest

from codehub.runtimes.process import tmpfs
from tests.integration.runtimes.conftest import TINY, RuntimeFixture

MEMORY = 96 << 20
FILL = """
import os
place = "{place}"
try:
    with open(place + "/file", "wb") as file:
        while True:
            file.write(bytes(1 << 20))
            file.flush()
except OSError as error:
    print(error.strerror, os.path.getsize(place + "/file") >> 20)
"""
MAKE_EMPTY_FILES = """
import os
place = "{place}"
made = 0
try:
    while True:
        os.close(os.open(place + "/" + str(made), os.O_CREAT))
        made += 1
except OSError as error:
    print(error.strerror, made)
"""


async def in_all_places(fixture: RuntimeFixture, code: str) -> list[str]:
    """What it prints in each place that can be written to, one after the other."""
    scripts = [f"python3 -c '{code.format(place=place)}'" for place in tmpfs.PARTS]
    return (await fixture.inside("w1", "; ".join(scripts))).splitlines()


async def a_small_workspace(fixture: RuntimeFixture) -> None:
    if "memory" not in (await fixture.runtime.barriers()).cgroups.parents:
        pytest.skip("needs control groups that may be made: run as root, with /sys/fs/cgroup writable")
    await fixture.started("w1", replace(TINY, memory_bytes=MEMORY))


async def test_full_tmpfs_directories_leave_the_ide_alive(fixture: RuntimeFixture) -> None:
    await a_small_workspace(fixture)
    assert await in_all_places(fixture, FILL) == [
        "No space left on device 24",
        "No space left on device 12",
        "No space left on device 12",
    ]
    assert (await fixture.runtime.status("w1")).ready


async def test_empty_files_without_end_leave_the_ide_alive(fixture: RuntimeFixture) -> None:
    await a_small_workspace(fixture)
    told = await in_all_places(fixture, MAKE_EMPTY_FILES)
    assert told == [
        f"No space left on device {(tmpfs.size_of(place, MEMORY) >> 13) - 1}" for place in tmpfs.PARTS
    ]
    assert (await fixture.runtime.status("w1")).ready


async def test_nothing_else_outside_the_home_can_be_written_to(fixture: RuntimeFixture) -> None:
    await fixture.started("w1")
    mounts = await fixture.inside("w1", "cat /proc/self/mountinfo")
    writable = {line.split()[4] for line in mounts.splitlines() if line.split()[5].startswith("rw")}
    own = {"/proc", "/dev/pts", "/home/coder", "/run/codehub", *tmpfs.PARTS}
    devices = {f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty")}
    assert writable <= own | devices | {"/dev/mqueue", "/dev/console"}
