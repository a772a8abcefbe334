"""Files of Docker workspaces without the rights to enter containers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn

import pytest

from codehub.host.processes import ProcessId
from codehub.runtimes.docker import files
from codehub.runtimes.docker.commands import DockerCommands
from codehub.runtimes.docker.container_process import ContainerProcess
from codehub.runtimes.docker.files import DockerFiles
from codehub.runtimes.exec_request import CommandRefused, ExecRequest
from codehub.runtimes.files.client import FilesUnavailable
from codehub.runtimes.process.forkserver_client import ForkServerClient


async def test_without_root_the_refusal_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    runtime = DockerFiles(DockerCommands(tmp_path, "unix:///nowhere", "one"))
    with pytest.raises(FilesUnavailable, match=r"runs as root.*or use a command"):
        async with runtime.open_files("w1"):
            pass


async def test_without_an_engine_there_are_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    runtime = DockerFiles(DockerCommands(tmp_path, f"unix://{tmp_path}/none", "one"))
    with pytest.raises(FilesUnavailable):
        async with runtime.open_files("w1"):
            pass


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (PermissionError(13, "Permission denied", "/proc/4711/status"), "Permission denied"),
        (OSError("/x"), "OSError"),
    ],
)
async def test_a_refusal_names_no_path_of_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError, reason: str
) -> None:
    def fail(*_: object) -> NoReturn:
        raise error

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(
        DockerCommands, "find_container", lambda *_: ContainerProcess("c", ProcessId(4711, 1))
    )
    monkeypatch.setattr(ForkServerClient, "send", fail)
    monkeypatch.setattr(files, "_request", fail)
    commands = DockerCommands(tmp_path / "execs", "unix:///nowhere", "one")
    with pytest.raises(FilesUnavailable) as no_files:
        async with DockerFiles(commands).open_files("w1"):
            pass
    assert str(no_files.value) == f"the workspace cannot be entered: {reason}"
    with pytest.raises(CommandRefused) as no_command:
        await commands.start_command("w1", ExecRequest("e1", ["true"]))
    assert str(no_command.value) == f"no process for the command could be started: {reason}"
