"""Deleting all containers of a runtime."""

from pathlib import Path

import pytest

from codehub.cli.runtime_choice import delete_all_containers
from codehub.runtimes.base import RuntimeFailure
from codehub.settings import load


async def test_a_container_that_cannot_be_deleted_does_not_keep_the_others(tmp_path: Path) -> None:
    unreadable, ended = tmp_path / "runtime" / "w1", tmp_path / "runtime" / "w2"
    (unreadable / "state.json").mkdir(parents=True)
    ended.mkdir()
    (ended / "state.json").write_text("of a crash")
    with pytest.raises(RuntimeFailure, match=r"w1: .*Is a directory"):
        await delete_all_containers(load(data_dir=tmp_path, runtime="process"), "installation")
    assert unreadable.exists() and not ended.exists()
