"""A lock has one holder, and ends with it."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from codehub.host.file_lock import is_file_at, is_locked, lock_within, locked, try_lock
from tests.waiting import wait_for

HOLDER = """
import signal, sys
from pathlib import Path
from codehub.host.file_lock import try_lock
print(try_lock(Path(sys.argv[1])), flush=True)
signal.pause()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lock"


def test_one_caller_gets_the_lock(path: Path) -> None:
    assert not is_locked(path)
    descriptor = try_lock(path)
    assert descriptor is not None
    assert is_locked(path)
    assert try_lock(path) is None
    assert lock_within(path, 0.05) is None
    os.close(descriptor)
    assert not is_locked(path)


def test_a_lock_file_is_private_and_its_descriptor_is_not_inherited(path: Path) -> None:
    descriptor = try_lock(path)
    assert descriptor is not None
    assert path.stat().st_mode & 0o777 == 0o600
    assert not os.get_inheritable(descriptor)
    os.close(descriptor)


def test_a_lock_ends_with_its_holder(path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    holder.stdout.readline()
    assert is_locked(path)
    holder.kill()
    holder.communicate()
    assert not is_locked(path)


def test_a_child_that_inherits_the_descriptor_holds_the_lock(path: Path) -> None:
    descriptor = try_lock(path)
    assert descriptor is not None
    child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=[descriptor])
    os.close(descriptor)
    assert is_locked(path)
    child.communicate(b"")
    assert not is_locked(path)


def test_the_lock_of_a_removed_file_does_not_count_for_its_successor(path: Path) -> None:
    descriptor = try_lock(path)
    assert descriptor is not None and is_file_at(descriptor, path)
    path.unlink()
    assert not is_file_at(descriptor, path)
    successor = try_lock(path)
    assert successor is not None and not is_file_at(descriptor, path)
    os.close(descriptor)
    os.close(successor)


def test_a_lock_is_not_taken_through_a_symbolic_link(path: Path) -> None:
    path.symlink_to(path.with_name("elsewhere"))
    with pytest.raises(OSError, match="symbolic links"):
        try_lock(path)
    assert not path.with_name("elsewhere").exists()


@pytest.mark.parametrize("is_directory", [True, False])
def test_a_second_caller_waits_and_is_notified(path: Path, is_directory: bool) -> None:
    if is_directory:
        path.mkdir()
    waits, order = threading.Event(), []

    def second() -> None:
        with locked(path, on_wait=waits.set):
            order.append("second")

    thread = threading.Thread(target=second)
    with locked(path):
        thread.start()
        wait_for(waits.is_set, "the second caller to wait")
        order.append("first")
    thread.join()
    assert order == ["first", "second"]
    assert not is_locked(path)
