"""Denied system calls of a process workspace, and images without the filter."""

from __future__ import annotations

import shutil

import pytest

from codehub.domain.images import Image
from codehub.runtimes.process.stale_processes import Isolation
from codehub.runtimes.seccomp import machine
from tests.integration.runtimes.conftest import TINY, UNCONFINED, RuntimeFixture, only_programs
from tests.integration.runtimes.network_peers import python_inside
from tests.system_calls import allowed_calls, answers, clone3, command, denied_calls, other_results

FOREIGN = """
import ctypes, mmap, os
code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
code.write(bytes.fromhex("b836010000 cd80 c3"))  # unshare on i386
call = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))
child = os.fork()
if child == 0:
    call()
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
SIGSYS = 31

THREADS = """
import subprocess, threading
done = []
thread = threading.Thread(target=lambda: done.append(subprocess.run(["echo", "works"], capture_output=True)))
thread.start()
thread.join()
print(done[0].stdout.decode(), end="")
"""

DEBUGGED = "gdb -q -batch -ex 'break main' -ex run ./t 2>&1"


@pytest.fixture(params=["sandbox", "user"])
def fixture_of_each_kind(
    request: pytest.FixtureRequest, fixture: RuntimeFixture, monkeypatch: pytest.MonkeyPatch
) -> RuntimeFixture:
    """With bubblewrap, which installs the filter, and without, when the keeper does."""
    if request.param == "user":
        only_programs(fixture, monkeypatch, "setpriv")
    return fixture


async def calls_inside(fixture: RuntimeFixture, calls: dict[str, tuple[int, ...]]) -> dict[str, str]:
    return answers(await fixture.inside("w1", command(calls)))


async def test_denied_calls_are_refused_and_debuggers_work(fixture_of_each_kind: RuntimeFixture) -> None:
    fixture = fixture_of_each_kind
    await fixture.started("w1")
    results = await calls_inside(fixture, denied_calls())
    assert set(results) == set(denied_calls())
    assert other_results(results, "EPERM") == {}
    assert await calls_inside(fixture, clone3()) == {"clone3": "ENOSYS"}
    assert other_results(await calls_inside(fixture, allowed_calls()), "") == {}
    assert await python_inside(fixture, "w1", THREADS) == "works\n"


@pytest.mark.skipif(machine() != "x86_64", reason="32-bit calls of x86_64")
async def test_a_call_of_another_architecture_ends_its_process(fixture: RuntimeFixture) -> None:
    """Its numbers mean other calls, so it could create a namespace."""
    await fixture.started("w1")
    assert await python_inside(fixture, "w1", FOREIGN) == f"-{SIGSYS}\n"


@pytest.mark.parametrize("image", [TINY, UNCONFINED], ids=["default", "unconfined"])
async def test_every_process_inside_has_the_filter_unless_its_image_says_otherwise(
    fixture: RuntimeFixture, image: Image
) -> None:
    await fixture.started("w1", image)
    modes = await fixture.inside("w1", "cat /proc/[0-9]*/status | grep '^Seccomp:'")
    expected = "2" if image.seccomp == "default" else "0"
    assert {line.split()[1] for line in modes.splitlines()} == {expected}


async def test_an_unconfined_image_can_make_all_calls(fixture: RuntimeFixture) -> None:
    await fixture.started("w1", UNCONFINED)
    results = await calls_inside(fixture, denied_calls())
    assert {"unshare", "setns", "keyctl", "io_uring_enter", "mbind"} <= set(other_results(results, "EPERM"))


async def test_without_bubblewrap_the_filter_still_applies(
    fixture: RuntimeFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_programs(fixture, monkeypatch, "setpriv")
    barriers = await fixture.runtime.barriers()
    assert barriers.isolation is Isolation.USER and barriers.seccomp


@pytest.mark.full  # gdb takes seconds to start
async def test_gdb_debugs_a_program(fixture: RuntimeFixture) -> None:
    if shutil.which("gdb") is None:
        pytest.skip("needs gdb: apt-get install gdb")
    await fixture.started("w1")
    program = "echo 'int main(void) { return 0; }' > t.c && gcc -g t.c -o t && "
    shown = await fixture.inside("w1", program + DEBUGGED)
    assert "Breakpoint 1, main" in shown, shown
