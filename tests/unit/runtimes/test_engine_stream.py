"""A command on Docker: the end of its stream, and a disk without space for notes."""

from __future__ import annotations

import json
import os
import selectors
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from codehub.host.processes import ProcessId
from codehub.runtimes.docker import exec_forkserver
from codehub.runtimes.docker.container_process import ContainerProcess
from codehub.runtimes.docker.engine_command import EngineCommand
from codehub.runtimes.docker.engine_http import EngineAnswer, EngineHttp
from codehub.runtimes.docker.exec_note import ExecNote, read
from codehub.runtimes.docker.monitor_request import MonitorRequest
from codehub.runtimes.exec_control import handle_events
from codehub.runtimes.exec_directory import ExecDirectory
from codehub.runtimes.exec_request import ExecRequest, TerminalSize


class OneExec(EngineHttp):
    """An engine whose exec is a process of this machine, and whose end of the stream the test holds."""

    stream, far_end = socket.socketpair()

    def request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> EngineAnswer:
        return EngineAnswer(200, json.dumps({"Id": "e", "Running": True, "Pid": os.getpid()}).encode())

    def open_stream(self, path: str, body: Mapping[str, Any]) -> socket.socket:
        type(self).stream, type(self).far_end = socket.socketpair()
        return self.stream


def started(tmp_path: Path, request: ExecRequest) -> tuple[EngineCommand, selectors.BaseSelector, int]:
    me = ProcessId.of(os.getpid())
    assert me is not None
    selector = selectors.DefaultSelector()
    directory = ExecDirectory(tmp_path)
    command = EngineCommand(OneExec("unix:///nowhere"), ContainerProcess("", me), request, directory)
    given = command.start(selector, lambda *_: None)
    assert given is not None
    return command, selector, given


@pytest.mark.parametrize("tty", [None, TerminalSize(24, 80)], ids=["pipe", "terminal"])
def test_the_input_of_a_command_whose_output_has_ended_is_closed(
    tmp_path: Path, tty: TerminalSize | None
) -> None:
    command, selector, given = started(tmp_path, ExecRequest("e", ["cat"], tty=tty))
    command.resize = lambda size: None  # type: ignore[method-assign]
    while command._process is None:
        command.poll()
    OneExec.far_end.shutdown(socket.SHUT_WR)
    while command.has_output():
        handle_events(selector, 5)
    with pytest.raises(BrokenPipeError):
        os.write(given, b"more")
    assert command.end_input() is False
    os.close(given)


def test_a_command_runs_on_when_its_process_cannot_be_noted(tmp_path: Path) -> None:
    command, _, given = started(tmp_path, ExecRequest("e", ["cat"]))
    (tmp_path / ".engine-exec").mkdir()  # writing the note fails
    while command._process is None:
        assert command.poll() is None
    assert read(ExecDirectory(tmp_path)) == ExecNote("", "e"), "the note names the exec"
    os.close(given)


def test_a_command_whose_monitor_fails_is_killed_even_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[object] = []

    class Failing:
        def __init__(self, *_: object) -> None: ...

        def run(self, _started: object) -> None:
            raise RuntimeError("the monitor failed")

    monkeypatch.setattr(exec_forkserver, "ExecMonitor", Failing)
    monkeypatch.setattr(EngineCommand, "kill", lambda command: killed.append(command))
    (tmp_path / "monitor-error").mkdir()  # writing the error fails
    me = ProcessId.of(os.getpid())
    assert me is not None
    request = MonitorRequest("unix:///x", ContainerProcess("c", me), "", (), ExecRequest("e", ["cat"]))
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(RuntimeError, match="the monitor failed"):
        exec_forkserver.monitor(theirs, request, ExecDirectory(tmp_path))
    assert len(killed) == 1
