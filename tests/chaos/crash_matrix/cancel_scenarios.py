"""Scenarios of cancelled operations: a cancel takes effect although processes die."""

from codehub.domain.states import DesiredState, Phase
from tests.chaos.crash_matrix.scenario import NEWER, NOTHING, OLDER, Kind, Scenario
from tests.chaos.crash_matrix.steps import AFTER, BEFORE, COORDINATOR, JOB, CrashPoint
from tests.chaos.crash_matrix.user_actions import (
    Action,
    cancel_at,
    create_workspace,
    request_state,
    start_unresponsive_ide,
)

JOB_KILLED = frozenset({"kill the job", "send SIGKILL"})
CANCEL_STEPS = r"kill the job|send .*|commit cancelled .*"
"""The scenario "cancel ARCHIVING, uploading" covers the other steps."""


def _of_provisioning(name: str, point: CrashPoint) -> Scenario:
    return Scenario(
        name,
        Kind.CANCEL,
        cancel_at(create_workspace(DesiredState.STANDBY), point),
        Phase.PENDING,
        home=NOTHING,
        archive=NOTHING,
        required_steps=frozenset({"become leader", "commit cancelled PROVISIONING"}),
        cancelled=True,
    )


def _of_restoring(name: str, point: CrashPoint) -> Scenario:
    return Scenario(
        name,
        Kind.CANCEL,
        cancel_at(request_state(DesiredState.STANDBY), point),
        Phase.ARCHIVED,
        home=NOTHING,
        archive=OLDER,
        required_steps=JOB_KILLED | {"commit cancelled RESTORING"},
        initial_state="archived",
        cancelled=True,
        only_steps=CANCEL_STEPS,
    )


def _from_standby(
    name: str, action: Action, point: CrashPoint, required_steps: frozenset[str], only_steps: str = ""
) -> Scenario:
    return Scenario(
        name,
        Kind.CANCEL,
        cancel_at(action, point),
        Phase.STANDBY,
        home=NEWER,
        archive=OLDER,
        required_steps=required_steps,
        initial_state="standby",
        cancelled=True,
        only_steps=only_steps,
    )


def _of_archiving(name: str, point: CrashPoint, only_steps: str = "") -> Scenario:
    required_steps = JOB_KILLED | {"commit cancelled ARCHIVING"}
    return _from_standby(name, request_state(DesiredState.ARCHIVED), point, required_steps, only_steps)


CANCEL_SCENARIOS = (
    _of_provisioning(
        "cancel PROVISIONING, before the rename",
        CrashPoint(COORDINATOR, "rename ws/.staging-* -> home", BEFORE),
    ),
    _of_restoring(
        "cancel RESTORING, unpacking",
        CrashPoint(JOB, "restore: spawn tar ws/.staging-* #2", AFTER),
    ),
    _of_restoring(
        "cancel RESTORING, before the rename",
        CrashPoint(JOB, "restore: rename ws/.staging-* -> home", BEFORE),
    ),
    _from_standby(
        "cancel STARTING",
        start_unresponsive_ide,
        CrashPoint(COORDINATOR, "commit conditions", AFTER),
        required_steps=frozenset({"send SIGTERM", "commit cancelled STARTING"}),
        only_steps=CANCEL_STEPS,
    ),
    _of_archiving("cancel ARCHIVING, uploading", CrashPoint(JOB, "archive: spawn tar ws/home", AFTER)),
    _of_archiving(
        "cancel ARCHIVING, before the commit",
        CrashPoint(JOB, "archive: rename archives/.meta#1 -> .meta", AFTER),
        CANCEL_STEPS,
    ),
)
