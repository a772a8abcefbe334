"""The contracts of sections 2, 3 and 8 of the specification, one small function each."""

from codehub.domain.decision import Decision, TimelineEvent
from codehub.domain.effects import DeleteContainer, DeleteVolume
from codehub.domain.observation import ArchiveFact, ContainerFact, Observation
from codehub.domain.states import DesiredState, ErrorReason, Operation, Phase
from tests.simulation.model.engine import check
from tests.simulation.model.row_conversion import LONG_AGO, to_workspace
from tests.simulation.model.state_parts import (
    Activity,
    Arc,
    Container,
    Disk,
    Expected,
    Gc,
    Generation,
    Op,
    Row,
    Store,
    Ttl,
    TtlSnapshot,
)
from tests.unit.domain import oracle

CREATES_HOME = (Operation.PROVISIONING, Operation.RESTORING)


def protects(row: Row, store: Store, arc: Arc, archives_kept: int) -> bool:
    """Section 8: "GC removes archives that nothing protects", restated independently."""
    if row.purged:
        return False
    kept = any(item.arc == arc and item.kept for item in store.records)
    newer = row.archive_key is not None and arc > row.archive_key
    restorable = sorted(item.arc for item in store.records if not item.removed and store.complete(item.arc))
    newest = archives_kept > 0 and arc in restorable[-archives_kept:]
    requested = row.request is not None and row.request.arc == arc
    return (
        arc in (row.archive_key, row.archive_op)
        or row.phase is Phase.ERROR
        or row.deleted > 0
        or kept
        or newer
        or newest
        or requested
    )


def has_copy(row: Row, expected: Expected, disk: Disk, store: Store) -> bool:
    """Return whether the expected content is in the home or the archive that the row refers to."""
    created_by = row.op if row.operation in CREATES_HOME else row.home and row.home.op
    meant = disk.home is not None and disk.marker is not None and disk.marker.op == created_by
    if meant and disk.home == expected.content:
        return True
    return store.complete(row.archive_key) == expected.content


@check("row expected disk store")
def a_complete_copy_exists(row: Row, expected: Expected, disk: Disk, store: Store) -> str | None:
    """At every instant, at least one complete, verified copy of a home exists until its owner has
    deleted the workspace and the grace period is over."""
    if expected.content is None or expected.lost or row.purged or has_copy(row, expected, disk, store):
        return None
    return f"at least one complete copy of the home exists: nowhere is {expected.content!r}"


@check("container disk")
def a_container_uses_its_own_home(container: Container | None, disk: Disk) -> str | None:
    """Start, archive, swap-in and delete name a generation, and do nothing if it differs."""
    if container is None or container.state == "exited" or disk.home is None or disk.marker is None:
        return None
    if disk.marker == container.home:
        return None
    return f"a container never uses a home of another generation: {container} with {disk.marker}"


@check("row")
def the_row_is_consistent(row: Row) -> str | None:
    """The phase is judged; at most one operation; ERROR implies operation = NONE; retries end."""
    workspace = to_workspace(row)
    phase = oracle.phase(workspace.conditions, row.deleted > 0, row.error, row.waived)
    none = row.operation is Operation.NONE
    if row.phase != phase and not _is_requested_since(row):
        return f"the phase equals judge: {row.phase} is not {phase}"
    if none is not (row.op is None):
        return "an operation has an op_id"
    if row.phase is Phase.ERROR and not none:
        return f"ERROR implies operation NONE: {row.operation}"
    if row.waived and not row.deleted:
        return "a grace period is waived by the delete that requests it: it is waived and not deleted"
    if none and row.volume.status and row.home is None:
        return "a volume that is ready has its generation in the row: home_ctx is NULL"
    if row.errors >= 3 and row.error not in oracle.TERMINAL:
        return "error_count >= 3 ends in ERROR"
    return None


def _is_requested_since(row: Row) -> bool:
    """Return whether a request explains a stale phase: the controller updates it after the gate."""
    return row.deleted > 0 or row.phase in (Phase.DELETED, Phase.DELETING)


@check("activity")
def no_activity_is_lost(activity: Activity) -> str | None:
    """Removed from Redis only after the commit."""
    known = max(activity.last_access, activity.redis or 0, activity.unsent or 0)
    return None if known >= activity.newest else "no activity is lost: nothing holds it"


def check_expiry(ttl: Ttl, expiry: DesiredState, row: Row, activity: Activity) -> str | None:
    """Check that idle is known: RUNNING for the TTL, no use, and a report of the gateway."""
    if expiry is not DesiredState.STANDBY:
        return None
    if not row.phase_due:
        return "the idle time starts at RUNNING: it had only just started"
    if not ttl.recent_report:
        return "nothing expires while a gateway is silent"
    long_ago = max(activity.idle or 0, activity.limit or 0)
    if ttl.reported is not None and ttl.reported > long_ago:
        return "a use that was reported keeps a workspace running"
    if activity.is_held:
        return "a command, lease or CPU use keeps a workspace running"
    ended = activity.idle is None or activity.held > activity.idle
    if ended and not activity.is_without_person:
        return "the TTL counts from the end of the last hold"
    return None


def check_no_expiry(ttl: Ttl, row: Row, activity: Activity) -> str | None:
    """Check that programs do not keep it running without a person."""
    runs = row.phase is Phase.RUNNING and row.desired is DesiredState.RUNNING and row.phase_due
    may_stop = runs and row.operation is Operation.NONE and not row.deleted and ttl.recent_report
    if may_stop and activity.is_without_person:
        return "programs keep a workspace running no longer than they may"
    return None


def check_late_expiry(seen: TtlSnapshot, row: Row, activity: Activity) -> str | None:
    """Check that nothing has begun since the decision."""
    if row.desired is not seen.desired:
        return f"a TTL never overwrites a newer request: {row.desired}"
    if seen.expiry is DesiredState.STANDBY and activity.is_held:
        return "a command, lease or CPU use that begins while a TTL fires wins"
    return None


def check_commit(
    me: str,
    row: Row,
    observation: Observation,
    decision: Decision,
    after: Row,
    disk: Disk,
    store: Store,
    expected: Expected,
    names: tuple[Op, Arc],
) -> str | None:
    """Check a commit of the controller against the row as it is at that moment."""
    if me != "lead":
        return "a leader that resumes late writes nothing: it has saved"
    return (
        check_row_change(row, decision, after)
        or _claims_once(row, after, names)
        or _claims_for_the_desired_state(row, after)
        or _loss_is_real(row, after, disk, store)
        or _finished_by_its_own_archive(row, decision, after)
        or _adopted_home(row, after, expected, disk)
        or _may_delete(row, observation, decision)
        or _may_replace(row, observation, decision)
        or _may_choose(row, decision, after, store, expected)
    )


def check_row_change(row: Row, decision: Decision, after: Row) -> str | None:
    recovered = decision.event is TimelineEvent.RECOVERED and row.request is not None
    if row.error in oracle.TERMINAL and after.error != row.error and not recovered:
        return f"ERROR stays until someone recovers it: {row.error} became {after.error}"
    chosen = restores(row) and after.archive_key == row.request.arc
    if (
        row.archive_key != after.archive_key
        and not recovered
        and not chosen
        and after.archive_key != row.archive_op
    ):
        return f"archive_key is that of *this* archive_op_id: {after.archive_key}, not {row.archive_op}"
    if row.home is not None and after.home != row.home and not recovered and not _removes(row):
        return "only an operation that removes a home, or its owner's choice, gives it up"
    return None


def restores(row: Row) -> bool:
    """Return whether the owner's request to restore a chosen archive is pending."""
    return row.request is not None and row.request.kind == "restore"


def _removes(row: Row) -> bool:
    return row.operation is Operation.ARCHIVING and row.archive_key == row.archive_op


def _claims_once(row: Row, after: Row, names: tuple[Op, Arc]) -> str | None:
    """A claim is one compare-and-swap, with a new op_id and, if it archives, archive_op_id."""
    if after.op == row.op and after.operation is row.operation:
        return None if after.archive_op == row.archive_op else "only a claim sets an archive_op_id"
    if after.operation is Operation.NONE:
        return None
    if row.operation is not Operation.NONE:
        return f"at most one operation per workspace: {after.operation} claimed over {row.operation}"
    if after.op != names[0]:
        return f"a claim sets a new op_id: {after.op}"
    if after.operation.makes_archive and after.archive_op != names[1]:
        return f"a claim takes a new archive_op_id: {after.archive_op} was used before"
    return None


def _claims_for_the_desired_state(row: Row, after: Row) -> str | None:
    """The table of section 3. A deleted workspace in ERROR only loses its container."""
    if row.operation is not Operation.NONE or after.operation is Operation.NONE:
        return None
    if row.deleted and row.error in oracle.TERMINAL:
        return (
            None
            if after.operation is Operation.STOPPING
            else f"ERROR skips reconciliation: {after.operation}"
        )
    level = oracle.level(to_workspace(after).conditions)
    has_key = after.archive_key is not None
    desired = DesiredState.ARCHIVED if restores(row) else row.desired
    wanted = oracle.operation(level, after.exists.status, has_key, desired.value, row.waived)
    if after.operation == wanted:
        return None
    return f"an operation leads to the desired state: {after.operation} at {level} towards {row.desired}"


def _loss_is_real(row: Row, after: Row, disk: Disk, store: Store) -> str | None:
    """A fact that cannot be observed keeps its last value, and never reads as gone."""
    if after.error is not ErrorReason.DataLost or row.error is ErrorReason.DataLost:
        return None
    if row.home is not None:
        there = disk.home is not None and disk.marker == row.home
    else:
        there = store.complete(row.archive_key) is not None
    return "a fact that cannot be observed never reads as gone: DataLost, and it exists" if there else None


def _finished_by_its_own_archive(row: Row, decision: Decision, after: Row) -> str | None:
    if row.operation is not Operation.ARCHIVING or decision.event is not TimelineEvent.FINISHED:
        return None
    if row.archive_key != row.archive_op:
        return "ARCHIVING finishes with the archive of *this* archive_op_id only"
    return None


def _adopted_home(row: Row, after: Row, expected: Expected, disk: Disk) -> str | None:
    """A restored home has exactly the archive's bytes. Only a recovery replaces a lost home."""
    if row.home is not None or after.home is None:
        return None
    if disk.home is None or disk.marker != after.home or disk.home == (expected.content or b""):
        return None
    if expected.lost:
        return f"a lost home is never replaced silently: {disk.home!r} replaces it"
    return f"a restored home has every byte: {disk.home!r} is not {expected.content!r}"


def _may_delete(row: Row, observation: Observation, decision: Decision) -> str | None:
    """The order: archive verified, archive_key committed, container deleted, volume deleted."""
    if not isinstance(decision.effect, DeleteVolume):
        return None
    absent = isinstance(observation.container, ContainerFact) and not observation.container.exists
    if not (_removes(row) and absent and decision.effect.generation == to_workspace(row).home_ctx):
        return "archive_key is committed, and no container exists, before a volume is deleted"
    if restores(row) and observation.deletion is None and not isinstance(observation.chosen, ArchiveFact):
        return "a home is removed for a restore only while the chosen archive is there"
    return None


def _may_replace(row: Row, observation: Observation, decision: Decision) -> str | None:
    """A silent IDE is replaced after half of its start timeout, and only once."""
    cancelled = row.request is not None and row.request.kind == "cancel"
    runs = isinstance(observation.container, ContainerFact) and observation.container.running
    if row.operation is not Operation.STARTING or row.op_due == 2 or cancelled or not runs:
        return None
    if decision.event is not TimelineEvent.FAILED and not isinstance(decision.effect, DeleteContainer):
        return None
    if observation.silent_since != LONG_AGO or row.op_due == 0:
        return "an IDE has half of its start timeout: it is replaced earlier"
    if decision.event is TimelineEvent.FAILED and row.errors:
        return "an operation replaces its own IDE once: it replaces it again"
    return None


def _may_choose(row: Row, decision: Decision, after: Row, store: Store, expected: Expected) -> str | None:
    """A restore replaces the present home only once it is a complete archive, which is kept."""
    if decision.event is not TimelineEvent.CHOSEN:
        return None
    if not expected.lost and store.complete(row.archive_key) != expected.content:
        return (
            f"a restore archives the present home first: {expected.content!r} is not in ar{row.archive_key}"
        )
    if row.home is not None or after.operation is not Operation.NONE:
        return "a restore archives the present home first: the row still has a home"
    if not decision.keep_archives:
        return "what a restore leaves behind is kept for the retention"
    return None


def check_home_removal(row: Row, home: Generation | None) -> str | None:
    """Check that a job removes a home only during the operation that wants it removed."""
    if row.purged or (_removes(row) and row.home == home):
        return None
    return f"a forgotten job never touches a home: it removes {home} during {row.operation}"


def expected_after(
    expected: Expected, row: Row, decision: Decision, after: Row, disk: Disk, store: Store
) -> Expected:
    """Return the content that is expected once this is committed.

    A recovery sets it to the owner's choice, and the first home to an empty one.
    """
    if decision.event is TimelineEvent.CHOSEN or (
        decision.event is TimelineEvent.RECOVERED and decision.keep_archives
    ):
        if after.archive_key is None:
            return expected._replace(content=None, lost=False)
        content = store.complete(after.archive_key)
        return expected._replace(content=content, lost=content is None)
    if (
        row.home is None
        and after.home is not None
        and disk.home == expected.content
        and disk.marker == after.home
    ):
        # A job held this copy when the archive was removed; it has become the home.
        return expected._replace(lost=False)
    if expected.content is not None or (after.home is None and after.archive_key is None):
        return expected
    first = expected._replace(content=b"")
    return first._replace(lost=expected.lost or not has_copy(after, first, disk, store))


def check_removal(arc: Arc, gc: Gc, row: Row, store: Store) -> str | None:
    """Check that nothing protects the archive, and that it was an orphan for 2 hours."""
    if protects(row, store, arc, gc.archives_kept):
        return f"GC never removes a protected archive: ar{arc}"
    if dict(gc.orphans).get(arc, 0) < 1 and not _goes_at_once(row):
        return f"GC removes only what was an orphan for its grace: ar{arc}"
    return None


def _goes_at_once(row: Row) -> bool:
    """Return whether the workspace was purged without a grace period."""
    return row.purged and row.waived


def check_late_removal(arc: Arc, row: Row) -> str | None:
    if not row.purged and arc in (row.archive_key, row.archive_op):
        return (
            f"GC never removes a protected archive: ar{arc} belongs to the workspace, and was checked before"
        )
    return None


def check_clearing(gc: Gc, row: Row) -> str | None:
    """Check that leftovers are kept for the grace period, and homes until the purge."""
    ages = dict(gc.remains)
    if "home" in gc.clear and not row.purged:
        return "GC never removes the home of a workspace that was not purged"
    early = [
        name
        for name in gc.clear
        if name.startswith(".aside-")
        and ages.get(name, 0) < (1 if row.purged else 2)
        and not _goes_at_once(row)
    ]
    return f"leftovers are kept for the grace period: {early}" if early else None
