"""The tmpfs directories of a workspace: even when they are full, no process dies."""

from __future__ import annotations

from dataclasses import replace

import pytest

from codehub.runtimes.process import tmpfs
from tests.integration.runtimes.conftest import TINY, RuntimeFixture

MEMORY = 96 << 20
FILL = """
import os
directory = "{directory}"
try:
    with open(directory + "/file", "wb") as file:
        while True:
            file.write(bytes(1 << 20))
            file.flush()
except OSError as error:
    print(error.strerror, os.path.getsize(directory + "/file") >> 20)
"""
MAKE_EMPTY_FILES = """
import os
directory = "{directory}"
made = 0
try:
    while True:
        os.close(os.open(directory + "/" + str(made), os.O_CREAT))
        made += 1
except OSError as error:
    print(error.strerror, made)
"""


async def in_all_directories(fixture: RuntimeFixture, code: str) -> list[str]:
    """Run the code for each directory, and return the lines that it prints."""
    scripts = [f"python3 -c '{code.format(directory=directory)}'" for directory in tmpfs.PARTS]
    return (await fixture.inside("w1", "; ".join(scripts))).splitlines()


async def start_small_workspace(fixture: RuntimeFixture) -> None:
    if "memory" not in (await fixture.runtime.barriers()).cgroups.parents:
        pytest.skip("needs control groups that may be made: run as root, with /sys/fs/cgroup writable")
    await fixture.started("w1", replace(TINY, memory_bytes=MEMORY))


async def test_full_tmpfs_directories_leave_the_ide_alive(fixture: RuntimeFixture) -> None:
    await start_small_workspace(fixture)
    assert await in_all_directories(fixture, FILL) == [
        "No space left on device 24",
        "No space left on device 12",
        "No space left on device 12",
    ]
    assert (await fixture.runtime.status("w1")).ready


async def test_empty_files_without_end_leave_the_ide_alive(fixture: RuntimeFixture) -> None:
    await start_small_workspace(fixture)
    lines = await in_all_directories(fixture, MAKE_EMPTY_FILES)
    assert lines == [
        f"No space left on device {(tmpfs.size_of(directory, MEMORY) >> 13) - 1}" for directory in tmpfs.PARTS
    ]
    assert (await fixture.runtime.status("w1")).ready


async def test_nothing_else_outside_the_home_can_be_written_to(fixture: RuntimeFixture) -> None:
    await fixture.started("w1")
    mounts = await fixture.inside("w1", "cat /proc/self/mountinfo")
    writable = {line.split()[4] for line in mounts.splitlines() if line.split()[5].startswith("rw")}
    own = {"/proc", "/dev/pts", "/home/coder", "/run/codehub", *tmpfs.PARTS}
    devices = {f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty")}
    assert writable <= own | devices | {"/dev/mqueue", "/dev/console"}
