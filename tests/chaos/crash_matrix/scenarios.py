"""Scenarios of the crash matrix: every operation, and cancels, recoveries, deletes and GC."""

from dataclasses import replace

from codehub.domain.states import DesiredState, Phase
from tests.chaos.crash_matrix.cancel_scenarios import CANCEL_SCENARIOS
from tests.chaos.crash_matrix.recovery_scenarios import RECOVERY_SCENARIOS, RESTORED
from tests.chaos.crash_matrix.scenario import EMPTY, NEWER, NOTHING, OLDER, Kind, Scenario
from tests.chaos.crash_matrix.user_actions import (
    create_workspace,
    delete,
    delete_beside_container,
    delete_in_error,
    request_state,
    restore_current_archive,
)
from tests.selection import sample

ARCHIVED = frozenset(
    {"commit claimed ARCHIVING", "commit archived ARCHIVING", "commit finished ARCHIVING"}
    | {"delete: rename ws/home -> .deleted-*"}
)
STOPPED = frozenset({"commit claimed STOPPING", "commit finished STOPPING"})

SCENARIOS = (
    Scenario(
        "CREATE_EMPTY_ARCHIVE",
        Kind.CREATE,
        create_workspace(DesiredState.ARCHIVED),
        Phase.ARCHIVED,
        home=NOTHING,
        archive=EMPTY,
        required_steps=frozenset(
            {
                "commit claimed CREATE_EMPTY_ARCHIVE",
                "spawn the job",
                "empty-archive: rename archives/home.tar.zst#1 -> home.tar.zst",
                "empty-archive: rename archives/.meta#1 -> .meta",
                "commit archived CREATE_EMPTY_ARCHIVE",
                "commit finished CREATE_EMPTY_ARCHIVE",
            }
        ),
    ),
    Scenario(
        "PROVISIONING",
        Kind.CREATE,
        create_workspace(DesiredState.STANDBY),
        Phase.STANDBY,
        home=EMPTY,
        archive=NOTHING,
        required_steps=frozenset(
            {
                "commit claimed PROVISIONING",
                "rename ws/.marker.tmp -> .marker",
                "rename ws/.staging-* -> home",
                "commit finished PROVISIONING",
            }
        ),
    ),
    Scenario(
        "RESTORING",
        Kind.RESTORE,
        request_state(DesiredState.STANDBY),
        Phase.STANDBY,
        home=OLDER,
        archive=OLDER,
        required_steps=RESTORED,
        initial_state="archived",
    ),
    Scenario(
        "restore of a chosen archive",
        Kind.RESTORE,
        restore_current_archive,
        Phase.STANDBY,
        home=OLDER,
        archive=OLDER,
        required_steps=RESTORED | ARCHIVED | {"commit chosen NONE", "delete: unlink ws/.marker"},
        initial_state="standby",
        kept_archive=NEWER,
        keeps_own_archive=True,
        only_steps=r"commit .*|spawn the job.*|archive: rename .*|(delete|restore): (rename|unlink) ws/.*",
    ),
    Scenario(
        "STARTING",
        Kind.START,
        request_state(DesiredState.RUNNING),
        Phase.RUNNING,
        home=NEWER,
        archive=OLDER,
        required_steps=frozenset({"commit claimed STARTING", "request a keeper", "commit finished STARTING"}),
        initial_state="standby",
    ),
    Scenario(
        "STOPPING",
        Kind.STOP,
        request_state(DesiredState.STANDBY),
        Phase.STANDBY,
        home=NEWER,
        archive=OLDER,
        required_steps=STOPPED | {"send SIGTERM", "rename runtime/* -> .deleted-*-*"},
        initial_state="standby",
        first_step="commit claimed STOPPING",
    ),
    Scenario(
        "ARCHIVING",
        Kind.ARCHIVE,
        request_state(DesiredState.ARCHIVED),
        Phase.ARCHIVED,
        home=NOTHING,
        archive=NEWER,
        required_steps=ARCHIVED
        | {
            "archive: rename archives/home.tar.zst#1 -> home.tar.zst",
            "archive: rename archives/.meta#1 -> .meta",
            "delete: unlink ws/.marker",
        },
        initial_state="standby",
    ),
    Scenario(
        "DELETING",
        Kind.DELETE,
        delete_beside_container,
        Phase.DELETED,
        home=NOTHING,
        archive=OLDER,
        required_steps=frozenset({"commit claimed DELETING", "send SIGTERM", "commit finished DELETING"}),
        initial_state="archived",
    ),
    Scenario(
        "delete in ERROR",
        Kind.DELETE,
        delete_in_error,
        Phase.DELETED,
        home=NEWER,
        archive=OLDER,
        required_steps=STOPPED | {"send SIGTERM"},
        initial_state="standby",
        first_step="commit claimed STOPPING",
        in_error=True,
        losses=1,
        only_steps="commit .*|send .*",
    ),
    Scenario(
        "delete while ARCHIVED",
        Kind.DELETE,
        delete,
        Phase.DELETED,
        home=NOTHING,
        archive=OLDER,
        required_steps=frozenset({"become leader", "commit phase, phase_changed_at"}),
        initial_state="archived",
    ),
    Scenario(
        "delete while RUNNING",
        Kind.DELETE,
        delete,
        Phase.DELETED,
        home=NOTHING,
        archive=NEWER,
        required_steps=STOPPED | ARCHIVED,
        initial_state="standby",
        first_step="commit claimed STOPPING",
        only_steps=r"commit .*|delete: rename ws/.*",
    ),
    *CANCEL_SCENARIOS,
    *RECOVERY_SCENARIOS,
)


_STORE_STEPS = (
    r"become leader|commit .*|spawn the job|archive: (spawn|hand|put).*|restore: (mkdir|spawn|rename ws).*"
    r"|(GET|HEAD|POST|PUT|DELETE) .*"
)
_REQUIRED_ON_S3 = {
    "RESTORING": RESTORED | {"GET home.tar.zst"},
    "ARCHIVING": frozenset(
        {
            "commit claimed ARCHIVING",
            "POST home.tar.zst uploads",
            "PUT home.tar.zst part 1",
            "POST home.tar.zst uploadId",
            "PUT .meta",
            "archive: put .meta",
            "commit archived ARCHIVING",
        }
    ),
}
ON_S3 = tuple(
    replace(scenario, only_steps=_STORE_STEPS, required_steps=_REQUIRED_ON_S3[scenario.name])
    for scenario in SCENARIOS
    if scenario.name in _REQUIRED_ON_S3
)
"""Scenarios to repeat on S3, with the steps that depend on the archive store."""


def chosen() -> list[Scenario]:
    """Return one scenario of each kind; all of them in `make test-all`."""
    kinds = [[scenario for scenario in SCENARIOS if scenario.kind is kind] for kind in Kind]
    return [one for scenarios in kinds for one in sample(scenarios, 1, f"scenario of {scenarios[0].kind}")]
