"""After the end: what comes back from ERROR or from the trash, and what goes for good."""

from dataclasses import replace

from codehub.domain.observation import Generation
from codehub.domain.states import DesiredState, Phase
from tests.chaos.crash_matrix.lane import GC
from tests.chaos.crash_matrix.scenario import EMPTY, NEWER, NOTHING, OLDER, Kind, Scenario
from tests.chaos.crash_matrix.wishes import (
    beside_stray,
    recover,
    recover_empty,
    undelete,
    wait,
    wait_for_gc,
)

RESTORED = frozenset(
    {
        "commit claimed RESTORING",
        "spawn the job",
        "restore: rename ws/.marker.tmp -> .marker",
        "restore: rename ws/.staging-* -> home",
        "commit finished RESTORING",
    }
)

FOREIGN = Generation("foreign", None)
PURGES = GC | {"trash_retention_seconds": 0}
NOTICED = frozenset({"take office", "commit phase, phase_changed_at"})

RECOVER = Scenario(
    "recover",
    Kind.RECOVER,
    recover,
    Phase.STANDBY,
    home=OLDER,
    archive=OLDER,
    must=RESTORED | {"commit recovered NONE"},
    stage="lost",
    kept=OLDER,
    only=r"commit .*|spawn .*|restore: rename ws/.*",
)
RECOVER_EMPTY = Scenario(
    "recover empty",
    Kind.RECOVER,
    recover_empty,
    Phase.STANDBY,
    home=EMPTY,
    archive=NOTHING,
    must=frozenset({"commit recovered NONE", "rename ws/.staging-* -> home", "commit finished PROVISIONING"}),
    stage="lost",
    kept=OLDER,
)

RECOVERIES = (
    RECOVER,
    replace(
        RECOVER,
        name="recover beside a foreign home",
        wish=beside_stray(recover, FOREIGN),
        must=frozenset({"rename ws/home -> .aside-foreign", "unlink ws/.marker", "commit recovered NONE"}),
        only=r"rename ws/home -> .*|unlink ws/.marker|commit (recovered|claimed) .*",
        aside=True,
    ),
    replace(
        RECOVER,
        name="recover beside a home without a marker",
        wish=beside_stray(recover, None),
        must=frozenset({"restore: rename ws/home -> .aside-*", "restore: rename ws/.staging-* -> home"}),
        only=r"restore: rename ws/(home|.staging-\*) -> .*",
        aside=True,
    ),
    RECOVER_EMPTY,
    replace(
        RECOVER_EMPTY,
        name="recover empty beside a foreign home",
        wish=beside_stray(recover_empty, FOREIGN),
        must=frozenset({"rename ws/home -> .aside-foreign", "unlink ws/.marker", "commit recovered NONE"}),
        only=r"rename ws/home -> .*|unlink ws/.marker|commit recovered .*",
        aside=True,
    ),
    replace(
        RECOVER_EMPTY,
        name="recover empty beside a home without a marker",
        wish=beside_stray(recover_empty, None),
        must=frozenset({"rename ws/home -> .aside-*", "rename ws/.staging-* -> home"}),
        only=r"rename ws/(home|.staging-\*) -> .*",
        aside=True,
    ),
)

TRASH = (
    Scenario(
        "undelete",
        Kind.TRASH,
        undelete,
        Phase.ARCHIVED,
        home=NOTHING,
        archive=OLDER,
        must=NOTICED,
        stage="trash",
    ),
    Scenario(
        "undelete one in ERROR",
        Kind.TRASH,
        undelete,
        Phase.ERROR,
        home=NEWER,
        archive=OLDER,
        must=NOTICED,
        stage="trash_in_error",
        in_error=True,
        desired=DesiredState.STANDBY,
    ),
    Scenario(
        "purge and GC",
        Kind.TRASH,
        wait_for_gc,
        Phase.DELETED,
        home=NOTHING,
        archive=NOTHING,
        must=frozenset(
            {
                "commit purge",
                "commit mark_archive_removed",
                "unlink archives/.meta",
                "unlink archives/home.tar.zst",
                "clear: spawn rm ws/.staging-killed",
            }
        ),
        stage="trash",
        settings=PURGES,
        purged=True,
    ),
    Scenario(
        "purge one in ERROR",
        Kind.TRASH,
        wait,
        Phase.DELETED,
        home=NOTHING,
        archive=NOTHING,
        must=frozenset({"commit purge", "delete: rename ws/home -> .deleted-*", "delete: unlink ws/.marker"}),
        stage="trash_in_error",
        settings=PURGES,
        purged=True,
        in_error=True,
        only=r"commit purge|spawn the job|delete: (rename ws/home|unlink|spawn rm) .*",
    ),
    Scenario(
        "GC of a replaced archive",
        Kind.TRASH,
        wait,
        Phase.ARCHIVED,
        home=NOTHING,
        archive=NEWER,
        must=frozenset(
            {"commit mark_archive_removed", "unlink archives/.meta", "unlink archives/home.tar.zst"}
        ),
        stage="replaced",
        settings=GC,
        sole=True,
        only=r"commit mark_archive_removed|unlink archives/.*|rmdir archives/.*",
    ),
)

RESCUES = (*RECOVERIES, *TRASH)
