"""Start of a process inside a workspace, whose user may stop it at any time."""

import os
import signal
import socket
from typing import NoReturn

import pytest

from codehub.host.processes import descendants
from codehub.runtimes.process.workspace_process import ExecSettings, report_error, start_inside

LONG = 60.0


def here() -> ExecSettings:
    """Return the settings of a workspace in the namespaces of this process."""
    return ExecSettings(os.getpid(), 0, None, {}, 0o022, {}, {}, b"")


def stop(_report: int) -> NoReturn:
    os.kill(os.getpid(), signal.SIGSTOP)
    os._exit(0)


def fail(report: int) -> NoReturn:
    report_error(report, OSError(13, "Permission denied"))
    os._exit(1)


def succeed(report: int) -> NoReturn:
    os.close(report)
    signal.pause()
    os._exit(0)


def test_a_process_that_is_stopped_while_it_starts_is_killed() -> None:
    before = set(descendants(os.getpid()))
    with pytest.raises(OSError, match="took too long"):
        start_inside(here(), stop, within=0.3)
    assert set(descendants(os.getpid())) <= before


def test_a_process_whose_client_hangs_up_while_it_starts_is_killed() -> None:
    before = set(descendants(os.getpid()))
    ours, theirs = socket.socketpair()
    ours.close()
    with theirs, pytest.raises(OSError, match="client has gone"):
        start_inside(here(), stop, client=theirs.fileno(), within=LONG)
    assert set(descendants(os.getpid())) <= before


def test_the_failure_of_a_start_is_reported() -> None:
    with pytest.raises(PermissionError):
        start_inside(here(), fail)


def test_a_process_starts_though_its_client_sends_early() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(b"a request")
        process = start_inside(here(), succeed, client=theirs.fileno(), within=LONG)
    os.kill(process, signal.SIGKILL)
    assert os.waitpid(process, 0)[1] == signal.SIGKILL
