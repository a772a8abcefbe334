"""Files of Docker workspaces without the rights to enter containers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from codehub.runtimes.docker.commands import DockerCommands
from codehub.runtimes.docker.files import DockerFiles
from codehub.runtimes.files.client import FilesUnavailable


async def test_without_root_the_refusal_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    files = DockerFiles(DockerCommands(tmp_path, "unix:///nowhere", "one"))
    with pytest.raises(FilesUnavailable, match=r"runs as root.*or use a command"):
        async with files.open_files("w1"):
            pass


async def test_without_an_engine_there_are_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    files = DockerFiles(DockerCommands(tmp_path, f"unix://{tmp_path}/none", "one"))
    with pytest.raises(FilesUnavailable):
        async with files.open_files("w1"):
            pass
