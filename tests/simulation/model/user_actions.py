"""Actions of users: requests through the gate (`database/gate.py`), and writes through the IDE."""

from collections.abc import Iterator

from codehub.domain import allowed_changes
from codehub.domain.problems import Problem
from codehub.domain.states import DesiredState
from codehub.domain.workspace import RecoverSource
from tests.simulation.model.engine import Step, rule, step
from tests.simulation.model.row_conversion import arc_name, to_workspace
from tests.simulation.model.state_parts import (
    Activity,
    Arc,
    Container,
    Disk,
    Expected,
    Record,
    Request,
    Row,
    Stamp,
    Store,
)

LETTERS = b"abcdefgh"
WAIVER_AFTER_UNDELETE = False
"""Whether an undelete leaves a waived grace period waived."""


@rule("row activity store", commits=True, needs="request")
def request(row: Row, activity: Activity, store: Store) -> Iterator[Step]:
    """Try every request. The gate rejects some of them with a Problem."""
    for call in (_desired_states, _delete, _delete_now, _undelete, _cancel):
        yield from _allowed_steps(call(row, activity))
    for source, record in _recover_choices(store):
        yield from _allowed_steps(_recover(row, activity, source, record))


def _allowed_steps(steps: Iterator[Step]) -> Iterator[Step]:
    while True:
        try:
            yield next(steps)
        except Problem:
            return
        except StopIteration:
            return


def _record_use(activity: Activity) -> Activity:
    """Count a start, a wake-up, a recovery or an undelete as activity."""
    now = activity.now
    return activity._replace(last_access=now, newest=now, person=now)


def _desired_states(row: Row, activity: Activity) -> Iterator[Step]:
    for desired in allowed_changes.REQUESTABLE_STATES:
        yield from _allowed_steps(_desired_state(row, activity, desired))


def _desired_state(row: Row, activity: Activity, desired: DesiredState) -> Iterator[Step]:
    if allowed_changes.check_desired_state(to_workspace(row), desired):
        used = _record_use(activity) if desired is DesiredState.RUNNING else activity
        yield step(
            f"the owner requests {desired}", "request", row=row._replace(desired=desired), activity=used
        )


def _delete(row: Row, activity: Activity) -> Iterator[Step]:
    allowed_changes.check_delete(to_workspace(row))
    after = row._replace(desired=DesiredState.DELETED, deleted=1, request=None)
    yield step("the owner deletes it", "request", row=after)


def _delete_now(row: Row, activity: Activity) -> Iterator[Step]:
    workspace = to_workspace(row)
    if allowed_changes.check_delete_now(workspace, workspace.name):
        deleted = row.deleted or 1
        after = row._replace(desired=DesiredState.DELETED, deleted=deleted, waived=True, request=None)
        yield step("the owner deletes it without an archive", "request", row=after)


def _undelete(row: Row, activity: Activity) -> Iterator[Step]:
    desired = allowed_changes.check_undelete(to_workspace(row))
    after = row._replace(desired=desired, deleted=0, waived=row.waived and WAIVER_AFTER_UNDELETE)
    yield step(
        f"the owner undeletes it, to be {desired}", "request", row=after, activity=_record_use(activity)
    )


def _cancel(row: Row, activity: Activity) -> Iterator[Step]:
    allowed_changes.check_cancel(to_workspace(row))
    if row.request is None or row.request.kind == "restore":
        yield step("the owner cancels", "request", row=row._replace(request=Request("cancel")))


@rule("row activity store", commits=True, needs="restore")
def restore(row: Row, activity: Activity, store: Store) -> Iterator[Step]:
    """Try to restore each archive that GC has not removed."""
    for record in store.records:
        if not record.removed:
            yield from _allowed_steps(_restore(row, activity, record.arc))


def _restore(row: Row, activity: Activity, arc: Arc) -> Iterator[Step]:
    if allowed_changes.check_restore(to_workspace(row), arc_name(arc) or ""):
        after = row._replace(request=Request("restore", None, arc))
        label = f"the owner restores {arc_name(arc)}"
        yield step(label, "restore", row=after, activity=_record_use(activity))


def _recover_choices(store: Store) -> Iterator[tuple[RecoverSource | None, Record | None]]:
    yield None, None
    yield RecoverSource.EMPTY, None
    for record in store.records:
        if not record.removed:
            yield RecoverSource.ARCHIVE, record


def _recover(
    row: Row, activity: Activity, source: RecoverSource | None, record: Record | None
) -> Iterator[Step]:
    arc = None if record is None else record.arc
    allowed_changes.check_recover(to_workspace(row), source, arc_name(arc))
    request = Request("recover", None if source is None else source.value, arc)
    label = f"the owner recovers it: {request.source or 'as it is'} {arc_name(arc) or ''}"
    yield step(label, "request", row=row._replace(request=request), activity=_record_use(activity))


@rule("container disk expected", needs="write")
def write(container: Container | None, disk: Disk, expected: Expected) -> Iterator[Step]:
    """A container that does not answer may still write."""
    if container is None or container.state not in ("ready", "hung") or disk.home is None:
        return
    if disk.marker is not None and disk.marker == container.home:
        home = disk.home + LETTERS[expected.writes : expected.writes + 1]
        after = expected._replace(content=home, writes=expected.writes + 1)
        yield step(f"the user writes {home!r}", "write", disk=disk._replace(home=home), expected=after)


@rule("activity", needs="use")
def use(activity: Activity) -> Iterator[Step]:
    """Use the workspace through the gateway, which reports it later."""
    now = activity.now
    yield step("the gateway notes activity", "use", activity=activity._replace(unsent=now, newest=now))


@rule("activity", needs="use ttl")
def gateway_reports(activity: Activity) -> Iterator[Step]:
    """`gateway/activity_reporter.py`: first Redis, where scores only grow, then the heartbeat.

    A report that fails is the same as one that comes later.
    """
    if activity.sent:
        recent_report = activity._replace(sent=False, recent_report=True)
        yield step("the gateway writes its heartbeat", activity=recent_report)
    elif activity.unsent is not None or not activity.recent_report:
        yield step("the gateway writes the activity to Redis", activity=written(activity))


def written(activity: Activity) -> Activity:
    newest = max(activity.redis or 0, activity.unsent or 0)
    return activity._replace(redis=Stamp(newest) if newest else None, unsent=None, sent=True)
