"""What is cancelled, and where it stood: the owner's word is kept, whoever dies before it is carried out."""

from codehub.domain.states import DesiredState, Phase
from tests.chaos.crash_matrix.scenario import NEWER, NOTHING, OLDER, Kind, Scenario
from tests.chaos.crash_matrix.steps import AFTER, BEFORE, COORDINATOR, JOB, Moment
from tests.chaos.crash_matrix.wishes import Wish, cancelled, created, start_mute, wished

KILLED = frozenset({"kill the job", "send SIGKILL"})
ONLY = r"kill the job|send .*|commit cancelled .*"
"""An upload that is cancelled has the other steps, too."""


def _of_provisioning(name: str, moment: Moment) -> Scenario:
    return Scenario(
        name,
        Kind.CANCEL,
        cancelled(created(DesiredState.STANDBY), moment),
        Phase.PENDING,
        home=NOTHING,
        archive=NOTHING,
        must=frozenset({"take office", "commit cancelled PROVISIONING"}),
        cancelled=True,
    )


def _of_restoring(name: str, moment: Moment) -> Scenario:
    return Scenario(
        name,
        Kind.CANCEL,
        cancelled(wished(DesiredState.STANDBY), moment),
        Phase.ARCHIVED,
        home=NOTHING,
        archive=OLDER,
        must=KILLED | {"commit cancelled RESTORING"},
        stage="archived",
        cancelled=True,
        only=ONLY,
    )


def _from_standby(name: str, wish: Wish, moment: Moment, must: frozenset[str], only: str = "") -> Scenario:
    return Scenario(
        name,
        Kind.CANCEL,
        cancelled(wish, moment),
        Phase.STANDBY,
        home=NEWER,
        archive=OLDER,
        must=must,
        stage="standby",
        cancelled=True,
        only=only,
    )


def _of_archiving(name: str, moment: Moment, only: str = "") -> Scenario:
    must = KILLED | {"commit cancelled ARCHIVING"}
    return _from_standby(name, wished(DesiredState.ARCHIVED), moment, must, only)


CANCELS = (
    _of_provisioning(
        "cancel PROVISIONING, all but renamed",
        Moment(COORDINATOR, "rename ws/.staging-* -> home", BEFORE),
    ),
    _of_restoring(
        "cancel RESTORING, unpacking",
        Moment(JOB, "restore: spawn tar ws/.staging-* #2", AFTER),
    ),
    _of_restoring(
        "cancel RESTORING, all but renamed",
        Moment(JOB, "restore: rename ws/.staging-* -> home", BEFORE),
    ),
    _from_standby(
        "cancel STARTING",
        start_mute,
        Moment(COORDINATOR, "commit conditions", AFTER),
        must=frozenset({"send SIGTERM", "commit cancelled STARTING"}),
        only=ONLY,
    ),
    _of_archiving("cancel ARCHIVING, uploading", Moment(JOB, "archive: spawn tar ws/home", AFTER)),
    _of_archiving(
        "cancel ARCHIVING, all but committed",
        Moment(JOB, "archive: rename archives/.meta#1 -> .meta", AFTER),
        ONLY,
    ),
)
