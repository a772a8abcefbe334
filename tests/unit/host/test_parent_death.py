"""A child ends with the process that started it."""

import os
import signal
import subprocess
import sys

import pytest

from codehub.host.parent_death import die_with_parent, set_parent_death_signal
from codehub.host.processes import ProcessId
from tests.waiting import wait_for

PARENT = """
import os, signal, subprocess, sys
from codehub.host.parent_death import die_with_parent
child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"],
    preexec_fn=die_with_parent(signal.SIGTERM))
print(child.pid, flush=True)
signal.pause()
"""


def test_a_child_ends_when_its_parent_is_killed() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert ProcessId.of(child) is not None
    parent.kill()
    parent.communicate()
    wait_for(lambda: ProcessId.of(child) is None, "the child to end")


def test_a_child_lives_while_its_parent_does() -> None:
    child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, preexec_fn=die_with_parent(signal.SIGKILL))
    child.communicate(b"")
    assert child.returncode == 0


@pytest.mark.parametrize("is_parent, code", [(True, 0), (False, 1)])
def test_a_child_whose_parent_has_died_already_exits(is_parent: bool, code: int) -> None:
    parent = os.getpid() if is_parent else os.getppid()
    child = os.fork()
    if child == 0:
        try:
            set_parent_death_signal(signal.SIGKILL, parent)
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == code
