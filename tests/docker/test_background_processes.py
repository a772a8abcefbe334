"""What a command in a container leaves in the background, and what ends it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from codehub.host.processes import ProcessId
from codehub.runtimes import exec_client
from codehub.runtimes.exec_directory import STDOUT, ExecDirectory, ExecState
from tests.docker.engine import OwnEngine
from tests.docker.test_commands import Commands
from tests.integration.runtimes.test_process_commands import record_of, shell, start
from tests.waiting import eventually, until

# The sleepers sleep for 1000 seconds or some more. A pattern with `[1]` does not match itself.
SLEEPERS = "cat /proc/[0-9]*/cmdline | tr '\\0' '\\n' | grep -cx '[1]{digits}'; true"
KILL_SLEEPER = (
    "for p in /proc/[0-9]*; do"
    " tr '\\0' '\\n' <$p/cmdline | grep -qx '[1]{digits}' && kill ${{p#/proc/}}; done; true"
)
IN_BACKGROUND = {
    "in its session": "(trap '' TERM; sleep 1000) & echo early",
    "in another session": (
        "setsid sh -c \"trap '' TERM; sleep 1000\" & echo early; until [ -e go ]; do sleep 0.02; done"
    ),
}


@pytest.fixture(scope="module")
def shared(own_engine: OwnEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    directory = tmp_path_factory.mktemp("background")
    directory.chmod(0o711)
    yield Commands(own_engine, directory)
    own_engine.clear()


@pytest.fixture
async def fixture(shared: Commands) -> AsyncIterator[Commands]:
    shared.runtime = shared.other_runtime()
    yield shared
    await shared.runtime.close()


async def sleepers(fixture: Commands, digits: str = "000") -> int:
    """Return how many processes of the workspace sleep for 1000 seconds, or what the digits say."""
    return int(await fixture.inside("w1", SLEEPERS.format(digits=digits)))


async def monitor_of(directory: ExecDirectory) -> ProcessId:
    record = await asyncio.to_thread(directory.read_record)
    assert record is not None
    return record.monitor


@pytest.mark.parametrize("where", IN_BACKGROUND)
@pytest.mark.parametrize("by", ["kill", "timeout"])
async def test_what_holds_the_output_after_its_command_is_killed(
    fixture: Commands, by: str, where: str
) -> None:
    spec = await fixture.started("w1")
    limits = {"timeout_seconds": 3, "kill_after_seconds": 0.1} if by == "timeout" else {}
    directory = await start(fixture, "w1", shell(IN_BACKGROUND[where], **limits))
    await eventually(lambda: asyncio.to_thread(directory.size, STDOUT), "its start", lambda size: size > 0)
    (spec.home / "go").touch()
    record = await record_of(directory)
    assert record.state is ExecState.EXITED or by == "timeout"  # a busy machine is slower than the timeout
    monitor = await monitor_of(directory)
    if by == "kill":
        assert await sleepers(fixture) == 1 and monitor.is_alive()
        await exec_client.control(directory, "kill", reason="Deleted")
    await until(lambda: not monitor.is_alive(), "its monitor to end")
    assert await sleepers(fixture) == 0
    assert await asyncio.to_thread(directory.read_record) == record


async def test_a_timeout_ends_what_a_running_command_has_orphaned(fixture: Commands) -> None:
    await fixture.started("w1")
    orphan = "(setsid sh -c \"trap '' TERM; sleep 1000\" &); trap '' TERM; while :; do sleep 0.05; done"
    directory = await start(fixture, "w1", shell(orphan, timeout_seconds=2, kill_after_seconds=0.1))
    record = await record_of(directory)
    assert (record.state, record.reason) == (ExecState.KILLED, "Timeout")
    await eventually(lambda: sleepers(fixture), "its end", lambda found: found == 0)


async def test_what_gives_up_the_output_goes_on_and_needs_no_monitor(fixture: Commands) -> None:
    """As on the process runtime: so a command starts a service."""
    await fixture.started("w1")
    service = "(sleep 1000 </dev/null >log 2>&1 &); (echo x | sleep 1000 >/dev/null 2>&1 &); echo started"
    directory = await start(fixture, "w1", shell(service, timeout_seconds=60))
    record = await record_of(directory)
    assert record.state is ExecState.EXITED
    await until(lambda: not record.monitor.is_alive(), "its monitor to end")
    assert await sleepers(fixture) == 2
    fixture.engine.docker("rm", "--force", "codehub-ws-w1")


async def test_a_monitor_ends_with_the_last_of_them(fixture: Commands) -> None:
    await fixture.started("w1")
    directory = await start(fixture, "w1", shell("sleep 1001 & sleep 1002 & echo early"))
    record = await record_of(directory)
    for digits, is_left in (("001", True), ("002", False)):
        await fixture.inside("w1", KILL_SLEEPER.format(digits=digits))
        await eventually(
            lambda digits=digits: sleepers(fixture, digits), "one to end", lambda found: found == 0
        )
        if is_left:
            assert record.monitor.is_alive()
    await until(lambda: not record.monitor.is_alive(), "its monitor to end")
