"""The limits, for every usage around them."""

from collections.abc import Callable
from itertools import product

import pytest

from codehub.domain.problems import RunningLimitExceeded, WorkspaceLimitExceeded
from codehub.domain.user_limits import (
    Limits,
    Usage,
    WorkspaceCounts,
    admit_running,
    admit_undeleted,
    admit_workspace,
)


def test_one_more_may_run_while_both_limits_allow_it() -> None:
    for per_user, everyone, user, others in product(range(4), range(5), range(5), range(5)):
        usage, limits = Usage(user, user + others), Limits(per_user, everyone)
        if user < per_user and user + others < everyone:
            admit_running(usage, limits)
            continue
        with pytest.raises(RunningLimitExceeded) as problem:
            admit_running(usage, limits)
        assert (problem.value.code, problem.value.status) == ("RUNNING_LIMIT_EXCEEDED", 429)
        own = user >= per_user
        assert problem.value.message.startswith("You already run" if own else "All ")


def test_another_workspace_is_admitted_while_there_is_room_for_it_and_its_trash() -> None:
    limits = Limits(1, 1, 3)
    for living, trash in product(range(5), range(8)):
        owned = WorkspaceCounts(living, trash)
        assert _admits(admit_workspace, owned, limits) == (living < 3 and living + trash < 6)
        assert _admits(admit_undeleted, owned, limits) == (living < 3)


def _admits(
    decide: Callable[[WorkspaceCounts, Limits], None], owned: WorkspaceCounts, limits: Limits
) -> bool:
    try:
        decide(owned, limits)
    except WorkspaceLimitExceeded:
        return False
    return True
