"""Programs that run commands in a workspace, hold leases of it, and use its CPU (`gate.change_holds`)."""

from collections.abc import Iterator

from codehub.domain import allowed_changes
from codehub.domain.problems import Problem
from tests.simulation.model.engine import Step, rule, step
from tests.simulation.model.row_conversion import to_workspace
from tests.simulation.model.state_parts import Activity, Row


@rule("row activity", needs="hold")
def begin(row: Row, activity: Activity) -> Iterator[Step]:
    """Start a command, which is a use, create a lease, or use much CPU, which are none."""
    try:
        allowed_changes.check_may_hold(to_workspace(row))
    except Problem:
        return
    now = activity.now
    if not activity.command:
        used = activity._replace(command=True, held=now, last_access=now, newest=now)
        yield step("a program starts a command", "hold", activity=used)
    if not activity.lease:
        yield step("a program takes a lease", "hold", activity=activity._replace(lease=True, held=now))
    if not activity.cpu:
        yield step("its CPU use is high", "hold", activity=activity._replace(cpu=True, held=now))


@rule("activity", needs="hold")
def end(activity: Activity) -> Iterator[Step]:
    if activity.command:
        yield step("the command ends", activity=activity._replace(command=False, held=activity.now))
    if activity.lease:
        yield step("the lease ends", activity=activity._replace(lease=False, held=activity.now))
    if activity.cpu:
        yield step("its CPU use is low", activity=activity._replace(cpu=False, held=activity.now))
