"""Commands: where they may start, their variables, and what a refresh changes."""

from dataclasses import replace
from datetime import timedelta

import pytest

from codehub.domain.exec_environment import MOST_BYTES, check_environment
from codehub.domain.execs import Exec, ExecObservation, ExecState, check_runs_commands, refreshed
from codehub.domain.problems import InvalidState, OperationInProgress, Problem, ValidationFailed
from codehub.domain.states import DesiredState, Operation, Phase
from codehub.domain.waking import Wake, WakeAction, next_wake_step
from tests.unit.domain.builders import NOW, workspace

RUNNING = workspace(phase=Phase.RUNNING, desired_state=DesiredState.RUNNING)
STANDBY = workspace(phase=Phase.STANDBY, desired_state=DesiredState.STANDBY)
ARCHIVED = workspace(phase=Phase.ARCHIVED, desired_state=DesiredState.ARCHIVED)
STOPPING = replace(
    RUNNING, desired_state=DesiredState.STANDBY, operation=Operation.STOPPING, op_id="o", op_started_at=NOW
)
FAILED = workspace(phase=Phase.ERROR, desired_state=DesiredState.RUNNING)
ROW = Exec(
    id="e", workspace_id="w", actor_id="u", actor_name="u", by_token=False, command=["true"], cwd="",
    tty=False, timeout_seconds=None, key=None, body_hash=None, state=ExecState.STARTING, reason=None,
    exit_code=None, created_at=NOW, started_at=None, ended_at=None, seen_at=NOW, missing_since=None,
    stdout_bytes=0, stderr_bytes=0, dropped_bytes=0, output_removed=False,
)  # fmt: skip
SEEN = ExecObservation(ExecState.RUNNING, NOW, None, None, None, 5, 0, 0)


def test_a_command_starts_only_where_nothing_is_about_to_stop_it() -> None:
    check_runs_commands(RUNNING)
    for other in (STANDBY, ARCHIVED, FAILED, replace(RUNNING, desired_state=DesiredState.STANDBY)):
        with pytest.raises(InvalidState):
            check_runs_commands(other)
    with pytest.raises(OperationInProgress):
        check_runs_commands(STOPPING)


@pytest.mark.parametrize(
    "name", ["CODEHUB_X", "LD_PRELOAD", "HOME", "USER", "LOGNAME", "VSCODE_PROXY_URI", "1X", "A-B", "", "Ä"]
)
def test_variables_of_codehub_and_odd_names_are_refused(name: str) -> None:
    with pytest.raises(ValidationFailed, match="env: "):
        check_environment({name: "x"})


def test_values_are_free_but_for_nul_and_their_size() -> None:
    check_environment({"PATH": "/x", "BASH_ENV": "/x", "GIT_SSH": "/x", "NODE_OPTIONS": "-r x", "_": "ä"})
    with pytest.raises(ValidationFailed, match="NUL"):
        check_environment({"A": "a\0b"})
    check_environment({"A": "x" * (MOST_BYTES - 3)})
    with pytest.raises(ValidationFailed, match="65536"):
        check_environment({"A": "x" * (MOST_BYTES - 2)})


def test_a_crash_between_row_and_start_ends_in_lost() -> None:
    assert refreshed(ROW, None, NOW + timedelta(seconds=59)) == {}
    assert refreshed(ROW, None, NOW + timedelta(seconds=61))["state"] is ExecState.LOST
    started = refreshed(ROW, SEEN, NOW + timedelta(seconds=61))
    assert (started["state"], started["seen_at"]) == (ExecState.RUNNING, NOW + timedelta(seconds=61))


def test_a_running_command_that_the_runtime_does_not_know_is_lost_after_a_while() -> None:
    running = replace(ROW, state=ExecState.RUNNING)
    first = NOW + timedelta(hours=1)
    assert refreshed(running, None, first) == {"missing_since": first}, "one look is not enough"
    missing = replace(running, missing_since=first)
    assert refreshed(missing, None, first + timedelta(minutes=4)) == {}
    assert refreshed(missing, None, first + timedelta(minutes=6))["reason"] == "NotFound"
    assert refreshed(missing, SEEN, first + timedelta(minutes=6))["missing_since"] is None


def test_a_quiet_terminal_is_not_lost_by_one_missed_look() -> None:
    quiet = replace(ROW, state=ExecState.RUNNING, tty=True, stdout_bytes=5)
    later = NOW + timedelta(hours=3)
    assert "state" not in refreshed(quiet, None, later)
    assert refreshed(quiet, SEEN, later)["seen_at"] == NOW, "and it does not keep its workspace awake"


@pytest.mark.parametrize("state", [ExecState.STARTING, ExecState.RUNNING])
def test_a_command_whose_record_is_damaged_is_not_lost_for_a_day(state: ExecState) -> None:
    row = replace(ROW, state=state)
    assert refreshed(row, None, NOW, is_unreadable=True) == {"missing_since": NOW}
    row = replace(row, missing_since=NOW)
    for hours, is_lost in ((23, False), (25, True)):
        changes = refreshed(row, None, NOW + timedelta(hours=hours), is_unreadable=True)
        assert (changes.get("state") is ExecState.LOST) is is_lost


def test_an_end_is_recorded_with_its_time() -> None:
    ended = replace(SEEN, state=ExecState.EXITED, ended_at=NOW, exit_code=3)
    changes = refreshed(replace(ROW, state=ExecState.RUNNING), ended, NOW + timedelta(hours=1))
    assert (changes["state"], changes["ended_at"], changes["exit_code"]) == (ExecState.EXITED, NOW, 3)
    assert changes["seen_at"] == NOW, "an ended command was not seen alive"


def test_a_terminal_is_seen_by_its_bytes_and_not_by_being_there() -> None:
    later = NOW + timedelta(minutes=2)
    terminal = replace(ROW, state=ExecState.RUNNING, tty=True, stdout_bytes=5)
    assert refreshed(terminal, SEEN, later)["seen_at"] == NOW
    assert refreshed(terminal, replace(SEEN, stdout_bytes=6), later)["seen_at"] == later
    assert refreshed(replace(terminal, tty=False), SEEN, later)["seen_at"] == later


@pytest.mark.parametrize(
    ("given", "wake", "expected"),
    [
        (RUNNING, Wake.NO, WakeAction.READY),
        (STANDBY, Wake.START, WakeAction.REQUEST_START),
        (STANDBY, Wake.RESTORE, WakeAction.REQUEST_START),
        (ARCHIVED, Wake.RESTORE, WakeAction.REQUEST_START),
        (STOPPING, Wake.START, WakeAction.WAIT),
        (replace(STANDBY, desired_state=DesiredState.RUNNING), Wake.START, WakeAction.WAIT),
        (replace(ARCHIVED, desired_state=DesiredState.RUNNING), Wake.START, WakeAction.WAIT),
        (workspace(phase=Phase.PENDING, desired_state=DesiredState.RUNNING), Wake.START, WakeAction.WAIT),
        (replace(RUNNING, desired_state=DesiredState.STANDBY), Wake.START, WakeAction.REQUEST_START),
    ],
)
def test_waking_takes_the_next_step(given: object, wake: Wake, expected: WakeAction) -> None:
    assert next_wake_step(given, wake).action is expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "wake"),
    [
        (STANDBY, Wake.NO),
        (STOPPING, Wake.NO),
        (ARCHIVED, Wake.START),
        (workspace(phase=Phase.PENDING, desired_state=DesiredState.STANDBY), Wake.START),
        (FAILED, Wake.START),
        (FAILED, Wake.RESTORE),
    ],
)
def test_what_waking_does_not_cover_is_a_conflict(given: object, wake: Wake) -> None:
    with pytest.raises(Problem) as caught:
        next_wake_step(given, wake)  # type: ignore[arg-type]
    assert caught.value.status == 409
