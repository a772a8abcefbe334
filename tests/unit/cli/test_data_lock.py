"""A second `up` on one data directory is rejected."""

import os
from pathlib import Path

import pytest

from codehub.cli import data_lock
from codehub.cli.errors import CommandError


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    return tmp_path


def test_a_second_up_gets_the_process_id_of_the_first(data_dir: Path) -> None:
    held = data_lock.acquire(data_dir)
    with pytest.raises(CommandError, match=rf"already running on {data_dir} \(process {os.getpid()}\)"):
        data_lock.acquire(data_dir)
    held.release()


def test_a_released_lock_can_be_acquired_again(data_dir: Path) -> None:
    data_lock.acquire(data_dir).release()
    data_lock.acquire(data_dir).release()


def test_the_holder_is_known_only_while_it_lives(data_dir: Path) -> None:
    assert data_lock.holder_pid(data_dir) is None
    held = data_lock.acquire(data_dir)
    assert data_lock.holder_pid(data_dir) == os.getpid()
    held.release()
    assert data_lock.holder_pid(data_dir) is None


def test_a_data_directory_that_never_ran_has_no_holder(tmp_path: Path) -> None:
    assert data_lock.holder_pid(tmp_path / "nothing") is None
