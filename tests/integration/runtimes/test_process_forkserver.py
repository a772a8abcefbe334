"""The keeper fork server: started on demand, replaced when it dies, and ended with its owner."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from codehub.host.processes import ProcessId, processes_with_argument, processes_with_variable
from codehub.runtimes.base import RuntimeFailure
from codehub.runtimes.process import forkserver_client
from codehub.runtimes.process.forkserver_client import ForkServerClient
from codehub.runtimes.process.keeper_request import KeeperRequest
from tests.integration.runtimes.conftest import RuntimeFixture
from tests.waiting import PATIENCE, wait_for


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> str:
    """Mark the environment of all fork servers that this test starts."""
    mark = secrets.token_hex(8)
    monkeypatch.setitem(forkserver_client.PYTHON_ENVIRONMENT, "MARK", mark)
    return mark


@pytest.fixture
def fork_server(fixture: RuntimeFixture, mark: str, monkeypatch: pytest.MonkeyPatch) -> ForkServerClient:
    client = ForkServerClient()
    monkeypatch.setattr("codehub.runtimes.process.runtime.FORK_SERVER", client)
    client.warm_up()
    return client


def fork_servers(mark: str) -> set[ProcessId]:
    marked = processes_with_variable(f"MARK={mark}")
    return set(marked) & set(processes_with_argument("codehub-keeper-forkserver"))


async def test_a_keeper_is_named_for_its_directory(fixture: RuntimeFixture) -> None:
    await fixture.started("w1")
    state = fixture.directory("w1").read_state()
    assert state is not None
    arguments = Path(f"/proc/{state.keeper.pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    assert arguments == [b"codehub-keeper", os.fsencode(fixture.directory("w1").path)]


async def test_a_killed_fork_server_is_replaced(
    fixture: RuntimeFixture, fork_server: ForkServerClient, mark: str
) -> None:
    (first,) = wait_for(lambda: fork_servers(mark), "the fork server")
    await fixture.started("w1")
    first.send(signal.SIGKILL)
    wait_for(lambda: not first.is_alive(), "the fork server to end")
    await fixture.started("w2")
    await fixture.until("w1", lambda fact: fact.ready)
    wait_for(lambda: len(fork_servers(mark)) == 1, "the fork server")


async def test_a_fork_server_ends_with_its_owner_and_its_keepers_run_on(
    fixture: RuntimeFixture, fork_server: ForkServerClient, mark: str
) -> None:
    await fixture.started("w1")
    assert fork_server._requests is not None
    fork_server._requests.close()
    wait_for(lambda: not fork_servers(mark), "the fork server to end")
    await fixture.until("w1", lambda fact: fact.ready)


class SlowForkServerClient(ForkServerClient):
    """Client that receives a request and waits before it passes it on."""

    def __init__(self) -> None:
        super().__init__()
        self.requested = threading.Event()
        self.may_continue = threading.Event()
        self.answered = False

    def start(self, request: KeeperRequest) -> str:
        self.requested.set()
        assert self.may_continue.wait(PATIENCE)
        answer = super().start(request)
        self.answered = True
        return answer


async def test_a_cancelled_start_returns_only_once_the_launch_has_finished(
    fixture: RuntimeFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its caller reserves the home meanwhile, so a late launch uses the right home."""
    slow = SlowForkServerClient()
    monkeypatch.setattr("codehub.runtimes.process.runtime.FORK_SERVER", slow)
    starting = asyncio.create_task(fixture.runtime.start(fixture.spec("w1")))
    assert await asyncio.to_thread(slow.requested.wait, PATIENCE)
    for _ in range(10):
        starting.cancel()
        await asyncio.sleep(0)
        assert not starting.done()
    slow.may_continue.set()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert slow.answered
    assert (await fixture.runtime.status("w1")).running


async def test_nothing_is_launched_after_the_deadline_of_the_request(
    fixture: RuntimeFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("codehub.runtimes.process.keeper_request_builder.LAUNCH_WITHIN_SECONDS", 0.0)
    with pytest.raises(RuntimeFailure, match="took too long"):
        await fixture.runtime.start(fixture.spec("w1"))
    assert not (await fixture.runtime.status("w1")).running


def test_a_fork_server_does_not_outlive_a_killed_owner(mark: str) -> None:
    script = (
        "from codehub.runtimes.process import forkserver_client\n"
        f"forkserver_client.PYTHON_ENVIRONMENT['MARK'] = {mark!r}\n"
        "forkserver_client.FORK_SERVER.warm_up()\nprint('warm', flush=True)\ninput()"
    )
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None and owner.stdout.readline()
        wait_for(lambda: len(fork_servers(mark)) == 1, "the fork server")
        owner.kill()
    wait_for(lambda: not fork_servers(mark), "the fork server to end")
