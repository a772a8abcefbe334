"""The deadlines of a stop: a keeper has recorded the end of its commands before it is killed itself."""

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from codehub.runtimes.process import keeper as keeper_module
from codehub.runtimes.process.keeper import Keeper, longest_stop
from codehub.runtimes.process.keeper_request import KeeperRequest
from codehub.runtimes.process.state_directory import StateDirectory

GRACE = 10.0


class Stubborn:
    """A process that SIGTERM does not end."""

    pid = 0

    def send(self, _number: int) -> bool:
        return True


def request(root: Path) -> KeeperRequest:
    return KeeperRequest(
        directory=str(root),
        workspace_id="w1",
        op_id="op-1",
        image="tiny",
        ready_path="/",
        isolation="none",
        uid=None,
        home=str(root),
        argv=[],
        env={},
        cwd="/",
        umask=0o022,
        pids=1,
        memory_bytes=1,
        grace_seconds=GRACE,
        executions=str(root / "executions"),
        sandbox_depth=0,
        launch_until=0,
    )


def test_stubborn_commands_and_a_stubborn_ide_share_one_grace_period(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(keeper_module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(keeper_module, "descendants", lambda _pid: {Stubborn(): 1})
    keeper = Keeper(StateDirectory(tmp_path), request(tmp_path))
    with subprocess.Popen(["sleep", "1000"]) as monitor:
        monkeypatch.setattr(keeper, "_exec_broker", SimpleNamespace(monitors={monitor.pid}))
        keeper._terminate()
        assert keeper._kill_at is None, "commands end first"
        clock.now += GRACE / 2
        keeper._terminate()
        monitor.kill()
    assert keeper._kill_at == 100.0 + GRACE
    clock.now = keeper._kill_at
    monkeypatch.setattr(keeper, "_exec_broker", None)
    monkeypatch.setattr(keeper, "_tree", dict)
    keeper._kill()
    assert keeper._kill_monitors_at == 100.0 + longest_stop(GRACE)
    os.close(keeper._log._descriptor)
