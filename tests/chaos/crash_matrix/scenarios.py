"""What is played: every operation, and every other way that a workspace may go."""

from dataclasses import replace

from codehub.domain.states import DesiredState, Phase
from tests.chaos.crash_matrix.cancels import CANCELS
from tests.chaos.crash_matrix.rescues import RESCUES, RESTORED
from tests.chaos.crash_matrix.scenario import EMPTY, NEWER, NOTHING, OLDER, Kind, Scenario
from tests.chaos.crash_matrix.wishes import (
    created,
    delete,
    delete_beside_container,
    delete_in_error,
    wished,
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
        created(DesiredState.ARCHIVED),
        Phase.ARCHIVED,
        home=NOTHING,
        archive=EMPTY,
        must=frozenset(
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
        created(DesiredState.STANDBY),
        Phase.STANDBY,
        home=EMPTY,
        archive=NOTHING,
        must=frozenset(
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
        wished(DesiredState.STANDBY),
        Phase.STANDBY,
        home=OLDER,
        archive=OLDER,
        must=RESTORED,
        stage="archived",
    ),
    Scenario(
        "STARTING",
        Kind.START,
        wished(DesiredState.RUNNING),
        Phase.RUNNING,
        home=NEWER,
        archive=OLDER,
        must=frozenset({"commit claimed STARTING", "ask for a keeper", "commit finished STARTING"}),
        stage="standby",
    ),
    Scenario(
        "STOPPING",
        Kind.STOP,
        wished(DesiredState.STANDBY),
        Phase.STANDBY,
        home=NEWER,
        archive=OLDER,
        must=STOPPED | {"send SIGTERM", "rename runtime/* -> .deleted-*-*"},
        stage="standby",
        begin="commit claimed STOPPING",
    ),
    Scenario(
        "ARCHIVING",
        Kind.ARCHIVE,
        wished(DesiredState.ARCHIVED),
        Phase.ARCHIVED,
        home=NOTHING,
        archive=NEWER,
        must=ARCHIVED
        | {
            "archive: rename archives/home.tar.zst#1 -> home.tar.zst",
            "archive: rename archives/.meta#1 -> .meta",
            "delete: unlink ws/.marker",
        },
        stage="standby",
    ),
    Scenario(
        "DELETING",
        Kind.DELETE,
        delete_beside_container,
        Phase.DELETED,
        home=NOTHING,
        archive=OLDER,
        must=frozenset({"commit claimed DELETING", "send SIGTERM", "commit finished DELETING"}),
        stage="archived",
    ),
    Scenario(
        "delete one in ERROR",
        Kind.DELETE,
        delete_in_error,
        Phase.DELETED,
        home=NEWER,
        archive=OLDER,
        must=STOPPED | {"send SIGTERM"},
        stage="standby",
        begin="commit claimed STOPPING",
        in_error=True,
        losses=1,
        only="commit .*|send .*",
    ),
    Scenario(
        "delete an ARCHIVED one",
        Kind.DELETE,
        delete,
        Phase.DELETED,
        home=NOTHING,
        archive=OLDER,
        must=frozenset({"take office", "commit phase, phase_changed_at"}),
        stage="archived",
    ),
    Scenario(
        "delete a RUNNING one",
        Kind.DELETE,
        delete,
        Phase.DELETED,
        home=NOTHING,
        archive=NEWER,
        must=STOPPED | ARCHIVED,
        stage="standby",
        begin="commit claimed STOPPING",
        only=r"commit .*|delete: rename ws/.*",
    ),
    *CANCELS,
    *RESCUES,
)


_WITH_THE_STORE = (
    r"take office|commit .*|spawn the job|archive: (spawn|hand|put).*|restore: (mkdir|spawn|rename ws).*"
    r"|(GET|HEAD|POST|PUT|DELETE) .*"
)
_MUST_ON_S3 = {
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
    replace(scenario, only=_WITH_THE_STORE, must=_MUST_ON_S3[scenario.name])
    for scenario in SCENARIOS
    if scenario.name in _MUST_ON_S3
)
"""The other steps of these do not depend on where archives are kept."""


def chosen() -> list[Scenario]:
    """Return one scenario of each kind; all of them in `make test-all`."""
    kinds = [[scenario for scenario in SCENARIOS if scenario.kind is kind] for kind in Kind]
    return [one for scenarios in kinds for one in sample(scenarios, 1, f"scenario of {scenarios[0].kind}")]
