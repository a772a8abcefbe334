"""The limit gate, over every usage around both limits."""

from itertools import product

import pytest

from codehub.domain.limits import Limits, Usage, admit
from codehub.domain.problems import RunningLimitExceeded


def test_one_more_is_admitted_exactly_while_both_limits_have_room() -> None:
    for per_user, everyone, user, others in product(range(4), range(5), range(5), range(5)):
        usage, limits = Usage(user, user + others), Limits(per_user, everyone)
        if user < per_user and user + others < everyone:
            admit(usage, limits)
            continue
        with pytest.raises(RunningLimitExceeded) as problem:
            admit(usage, limits)
        assert (problem.value.code, problem.value.status) == ("RUNNING_LIMIT_EXCEEDED", 429)
        own = user >= per_user
        assert problem.value.message.startswith("You already run" if own else "All ")
