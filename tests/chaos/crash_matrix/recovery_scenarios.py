"""Scenarios of recoveries from ERROR, of undeletes, of purges and of GC."""

from dataclasses import replace

from codehub.domain.observation import Generation
from codehub.domain.states import DesiredState, Phase
from tests.chaos.crash_matrix.installation import GC_SETTINGS
from tests.chaos.crash_matrix.scenario import EMPTY, NEWER, NOTHING, OLDER, Kind, Scenario
from tests.chaos.crash_matrix.user_actions import (
    leave_staging_leftover,
    next_to_stray_home,
    no_action,
    recover,
    recover_empty,
    undelete,
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

FOREIGN_GENERATION = Generation("foreign", None)
PURGE_SETTINGS = GC_SETTINGS | {"trash_retention_seconds": 0}
NOTICED = frozenset({"become leader", "commit phase, phase_changed_at"})

RECOVER = Scenario(
    "recover",
    Kind.RECOVER,
    recover,
    Phase.STANDBY,
    home=OLDER,
    archive=OLDER,
    required_steps=RESTORED | {"commit recovered NONE"},
    initial_state="lost",
    kept_archive=OLDER,
    only_steps=r"commit .*|spawn .*|restore: rename ws/.*",
)
RECOVER_EMPTY = Scenario(
    "recover empty",
    Kind.RECOVER,
    recover_empty,
    Phase.STANDBY,
    home=EMPTY,
    archive=NOTHING,
    required_steps=frozenset(
        {"commit recovered NONE", "rename ws/.staging-* -> home", "commit finished PROVISIONING"}
    ),
    initial_state="lost",
    kept_archive=OLDER,
)

RECOVERIES = (
    RECOVER,
    replace(
        RECOVER,
        name="recover beside a foreign home",
        action=next_to_stray_home(recover, FOREIGN_GENERATION),
        required_steps=frozenset(
            {"rename ws/home -> .aside-foreign", "unlink ws/.marker", "commit recovered NONE"}
        ),
        only_steps=r"rename ws/home -> .*|unlink ws/.marker|commit (recovered|claimed) .*",
        sets_home_aside=True,
    ),
    replace(
        RECOVER,
        name="recover beside a home without a marker",
        action=next_to_stray_home(recover, None),
        required_steps=frozenset(
            {"restore: rename ws/home -> .aside-*", "restore: rename ws/.staging-* -> home"}
        ),
        only_steps=r"restore: rename ws/(home|.staging-\*) -> .*",
        sets_home_aside=True,
    ),
    RECOVER_EMPTY,
    replace(
        RECOVER_EMPTY,
        name="recover empty beside a foreign home",
        action=next_to_stray_home(recover_empty, FOREIGN_GENERATION),
        required_steps=frozenset(
            {"rename ws/home -> .aside-foreign", "unlink ws/.marker", "commit recovered NONE"}
        ),
        only_steps=r"rename ws/home -> .*|unlink ws/.marker|commit recovered .*",
        sets_home_aside=True,
    ),
    replace(
        RECOVER_EMPTY,
        name="recover empty beside a home without a marker",
        action=next_to_stray_home(recover_empty, None),
        required_steps=frozenset({"rename ws/home -> .aside-*", "rename ws/.staging-* -> home"}),
        only_steps=r"rename ws/(home|.staging-\*) -> .*",
        sets_home_aside=True,
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
        required_steps=NOTICED,
        initial_state="trash",
    ),
    Scenario(
        "undelete in ERROR",
        Kind.TRASH,
        undelete,
        Phase.ERROR,
        home=NEWER,
        archive=OLDER,
        required_steps=NOTICED,
        initial_state="trash_in_error",
        in_error=True,
        desired_state=DesiredState.STANDBY,
    ),
    Scenario(
        "purge and GC",
        Kind.TRASH,
        leave_staging_leftover,
        Phase.DELETED,
        home=NOTHING,
        archive=NOTHING,
        required_steps=frozenset(
            {
                "commit purge",
                "commit mark_archive_removed",
                "unlink archives/.meta",
                "unlink archives/home.tar.zst",
                "clear: spawn rm ws/.staging-killed",
            }
        ),
        initial_state="trash",
        settings=PURGE_SETTINGS,
        purged=True,
    ),
    Scenario(
        "purge in ERROR",
        Kind.TRASH,
        no_action,
        Phase.DELETED,
        home=NOTHING,
        archive=NOTHING,
        required_steps=frozenset(
            {"commit purge", "delete: rename ws/home -> .deleted-*", "delete: unlink ws/.marker"}
        ),
        initial_state="trash_in_error",
        settings=PURGE_SETTINGS,
        purged=True,
        in_error=True,
        only_steps=r"commit purge|spawn the job|delete: (rename ws/home|unlink|spawn rm) .*",
    ),
    Scenario(
        "GC of a replaced archive",
        Kind.TRASH,
        no_action,
        Phase.ARCHIVED,
        home=NOTHING,
        archive=NEWER,
        required_steps=frozenset(
            {"commit mark_archive_removed", "unlink archives/.meta", "unlink archives/home.tar.zst"}
        ),
        initial_state="replaced",
        settings=GC_SETTINGS,
        only_archive=True,
        only_steps=r"commit mark_archive_removed|unlink archives/.*|rmdir archives/.*",
    ),
)

RECOVERY_SCENARIOS = (*RECOVERIES, *TRASH)
