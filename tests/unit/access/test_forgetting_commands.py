"""What a command's monitor refuses is not taken for the end of the command."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from codehub.access import execs
from codehub.access.services import AccessServices
from codehub.domain.execs import Exec
from codehub.domain.problems import InvalidState
from codehub.host.processes import ProcessId, boot_id
from codehub.runtimes.command_runtime import STDOUT, ControlFailed
from codehub.runtimes.exec_directory import ExecRecord, ExecState, OutputWriter
from codehub.runtimes.recorded_commands import RecordedCommands

ROW = cast(Exec, SimpleNamespace(workspace_id="w1", id="e1"))


def with_record(root: Path, state: ExecState) -> AccessServices:
    """Return the commands of a runtime with one whose monitor does not listen."""
    me = ProcessId.of(os.getpid())
    assert me is not None
    commands = RecordedCommands(root)
    directory = commands.directory("w1", "e1")
    directory.path.mkdir(parents=True)
    directory.write_record(ExecRecord(state, boot_id(), me, time.time()))
    OutputWriter(directory, STDOUT, 100).write(b"output")
    return cast(AccessServices, SimpleNamespace(commands=commands))


async def test_a_command_that_cannot_be_killed_is_not_forgotten(tmp_path: Path) -> None:
    with pytest.raises(InvalidState, match="still runs"):
        await execs.kill(with_record(tmp_path, ExecState.RUNNING), ROW)


@pytest.mark.parametrize("state", [ExecState.EXITED, ExecState.KILLED, ExecState.LOST])
async def test_a_command_that_has_ended_needs_no_kill(tmp_path: Path, state: ExecState) -> None:
    await execs.kill(with_record(tmp_path, state), ROW)


async def test_a_reader_that_is_not_accepted_does_not_see_the_end(tmp_path: Path) -> None:
    services = with_record(tmp_path, ExecState.RUNNING)
    seen = []
    with pytest.raises(ControlFailed, match="no further reader"):
        async for piece in services.commands.follow_output("w1", "e1", STDOUT, 0):
            seen.append(piece.data)
    assert seen == [b"output"]


async def test_a_reader_of_an_ended_command_sees_the_end(tmp_path: Path) -> None:
    commands = with_record(tmp_path, ExecState.EXITED).commands
    pieces = [piece.data async for piece in commands.follow_output("w1", "e1", STDOUT, 0)]
    assert pieces == [b"output"]
