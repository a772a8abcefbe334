"""What people do: wishes through the gate (`store/gate.py`), and writing into a home through its IDE."""

from collections.abc import Iterator

from codehub.domain import allowed_changes
from codehub.domain.problems import Problem
from codehub.domain.states import DesiredState
from codehub.domain.workspace import RecoverSource
from tests.simulation.model.engine import Step, rule, step
from tests.simulation.model.parts import (
    Activity,
    Ask,
    Container,
    Disk,
    Record,
    Row,
    Stamp,
    Store,
    Truth,
)
from tests.simulation.model.rows import arc_name, to_workspace

LETTERS = b"abcdefgh"
WAIVER_AFTER_UNDELETE = False
"""Whether an undelete leaves a waived grace period waived."""


@rule("row activity store", commits=True, needs="wish")
def wish(row: Row, activity: Activity, store: Store) -> Iterator[Step]:
    """Each rule of the gate raises a Problem, or lets the wish through."""
    for call in (_states, _delete, _delete_now, _undelete, _cancel):
        yield from _allowed(call(row, activity))
    for source, record in _choices(store):
        yield from _allowed(_recover(row, activity, source, record))


def _allowed(asked: Iterator[Step]) -> Iterator[Step]:
    while True:
        try:
            yield next(asked)
        except Problem:
            return
        except StopIteration:
            return


def _used(activity: Activity) -> Activity:
    """Starting, waking, recovering or undeleting counts as activity."""
    now = Stamp(activity.newest + 1)
    return activity._replace(last_access=now, newest=now)


def _states(row: Row, activity: Activity) -> Iterator[Step]:
    for desired in allowed_changes.REQUESTABLE_STATES:
        yield from _allowed(_state(row, activity, desired))


def _state(row: Row, activity: Activity, desired: DesiredState) -> Iterator[Step]:
    if allowed_changes.check_desired_state(to_workspace(row), desired):
        used = _used(activity) if desired is DesiredState.RUNNING else activity
        yield step(f"the owner wishes {desired}", "wish", row=row._replace(desired=desired), activity=used)


def _delete(row: Row, activity: Activity) -> Iterator[Step]:
    allowed_changes.check_delete(to_workspace(row))
    after = row._replace(desired=DesiredState.DELETED, deleted=1, request=None)
    yield step("the owner deletes it", "wish", row=after)


def _delete_now(row: Row, activity: Activity) -> Iterator[Step]:
    workspace = to_workspace(row)
    if allowed_changes.check_delete_now(workspace, workspace.name):
        deleted = row.deleted or 1
        after = row._replace(desired=DesiredState.DELETED, deleted=deleted, waived=True, request=None)
        yield step("the owner deletes it without an archive", "wish", row=after)


def _undelete(row: Row, activity: Activity) -> Iterator[Step]:
    desired = allowed_changes.check_undelete(to_workspace(row))
    after = row._replace(desired=desired, deleted=0, waived=row.waived and WAIVER_AFTER_UNDELETE)
    yield step(f"the owner undeletes it, to be {desired}", "wish", row=after, activity=_used(activity))


def _cancel(row: Row, activity: Activity) -> Iterator[Step]:
    allowed_changes.check_cancel(to_workspace(row))
    if row.request is None:
        yield step("the owner cancels", "wish", row=row._replace(request=Ask("cancel")))


def _choices(store: Store) -> Iterator[tuple[RecoverSource | None, Record | None]]:
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
    asked = Ask("recover", None if source is None else source.value, arc)
    words = f"the owner recovers it: {asked.source or 'as it is'} {arc_name(arc) or ''}"
    yield step(words, "wish", row=row._replace(request=asked), activity=_used(activity))


@rule("container disk truth", needs="write")
def write(container: Container | None, disk: Disk, truth: Truth) -> Iterator[Step]:
    """A container that does not answer may still write."""
    if container is None or container.state not in ("ready", "hung") or disk.home is None:
        return
    if disk.marker is not None and disk.marker == container.home:
        home = disk.home + LETTERS[truth.writes : truth.writes + 1]
        after = truth._replace(owed=home, writes=truth.writes + 1)
        yield step(f"the user writes {home!r}", "write", disk=disk._replace(home=home), truth=after)


@rule("activity", needs="use")
def use(activity: Activity) -> Iterator[Step]:
    """Typing passes the gateway, which reports it later."""
    now = Stamp(activity.newest + 1)
    yield step("the gateway notes activity", "use", activity=activity._replace(unsent=now, newest=now))


@rule("activity", needs="use ttl")
def gateway_reports(activity: Activity) -> Iterator[Step]:
    """`gateway/handover.py`: Redis first, where a score only ever grows, then the heartbeat.

    A report that fails is one that comes later.
    """
    if activity.sent:
        heard = activity._replace(sent=False, heard=True)
        yield step("the gateway leaves its heartbeat", activity=heard)
    elif activity.unsent is not None or not activity.heard:
        yield step("the gateway writes the activity to Redis", activity=written(activity))


def written(activity: Activity) -> Activity:
    newest = max(activity.redis or 0, activity.unsent or 0)
    return activity._replace(redis=Stamp(newest) if newest else None, unsent=None, sent=True)
