"""Directories of commands: how that of a workspace without a home is removed."""

import socket
from pathlib import Path

import pytest

from codehub.runtimes.recorded_commands import RecordedCommands


@pytest.fixture
def commands(tmp_path: Path) -> RecordedCommands:
    (tmp_path / "w1" / "exec").mkdir(parents=True)
    return RecordedCommands(tmp_path)


async def test_a_directory_is_renamed_first_and_removed_later(commands: RecordedCommands) -> None:
    aside = commands.set_aside("w1")
    assert aside is not None and (commands.root / aside / "exec").is_dir()
    assert await commands.kept_commands() == {}
    assert commands.set_aside("w1") is None, "nothing is kept any more"
    await RecordedCommands(commands.root).remove_set_aside()
    assert list(commands.root.iterdir()) == []


async def test_a_directory_that_serves_commands_stays(commands: RecordedCommands) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(commands.root / "w1" / "exec.sock"))
        listener.listen()
        assert commands.set_aside("w1") is None
    assert commands.set_aside("w1") is not None, "a socket of a broker that has ended accepts nothing"


async def test_a_directory_is_put_back_unless_the_workspace_was_started(commands: RecordedCommands) -> None:
    aside = commands.set_aside("w1")
    assert aside is not None
    commands.put_back("w1", aside)
    assert await commands.kept_commands() == {"w1": frozenset({"exec"})}
    aside = commands.set_aside("w1")
    assert aside is not None
    (commands.root / "w1" / "new").mkdir(parents=True)
    commands.put_back("w1", aside)
    assert await commands.kept_commands() == {"w1": frozenset({"new"})}


async def test_a_damaged_record_is_not_a_missing_one(commands: RecordedCommands) -> None:
    assert not await commands.is_unreadable("w1", "exec")
    (commands.root / "w1" / "exec" / "record").write_bytes(b"")
    assert await commands.is_unreadable("w1", "exec")
    assert await commands.find_command("w1", "exec") is None
