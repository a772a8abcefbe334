"""The contracts (sections 2, 3 and 8 of the specification), each as one small function that quotes it."""

from codehub.domain.decision import Decision, TimelineEvent
from codehub.domain.effects import DeleteContainer, DeleteVolume
from codehub.domain.observation import ContainerFact, Observation
from codehub.domain.states import DesiredState, ErrorReason, Operation, Phase
from tests.simulation.model.engine import check
from tests.simulation.model.parts import (
    Activity,
    Arc,
    Container,
    Disk,
    Gc,
    Generation,
    Op,
    Row,
    Store,
    Truth,
    Ttl,
)
from tests.simulation.model.rows import LONG_AGO, to_workspace
from tests.unit.domain import oracle

HOME_MAKERS = (Operation.PROVISIONING, Operation.RESTORING)


def protects(row: Row, store: Store, arc: Arc) -> bool:
    """Section 8: "GC removes archives that nothing protects", in its own words."""
    if row.purged:
        return False
    kept = any(item.arc == arc and item.kept for item in store.records)
    newer = row.archive_key is not None and arc > row.archive_key
    return (
        arc in (row.archive_key, row.archive_op)
        or row.phase is Phase.ERROR
        or row.deleted > 0
        or kept
        or newer
    )


def has_copy(row: Row, truth: Truth, disk: Disk, store: Store) -> bool:
    """Whether what the user last had is in the home that the row means, or in the archive that it means."""
    expected = row.op if row.operation in HOME_MAKERS else row.home and row.home.op
    meant = disk.home is not None and disk.marker is not None and disk.marker.op == expected
    if meant and disk.home == truth.owed:
        return True
    return store.complete(row.archive_key) == truth.owed


@check("row truth disk store")
def a_complete_copy_exists(row: Row, truth: Truth, disk: Disk, store: Store) -> str | None:
    """At every instant, at least one complete, verified copy of a home exists until its owner has deleted the
    workspace and the grace period is over."""
    if truth.owed is None or truth.lost or row.purged or has_copy(row, truth, disk, store):
        return None
    return f"at least one complete copy of the home exists: nowhere is {truth.owed!r}"


@check("container disk")
def a_container_is_on_its_own_home(container: Container | None, disk: Disk) -> str | None:
    """Start, archive, swap-in and delete name the generation they mean and do nothing when it differs."""
    if container is None or container.state == "exited" or disk.home is None or disk.marker is None:
        return None
    if disk.marker == container.home:
        return None
    return f"a container is never on a home of another generation: {container} beside {disk.marker}"


@check("row")
def the_row_makes_sense(row: Row) -> str | None:
    """The phase is judged; at most one operation; ERROR implies operation = NONE; retries end."""
    workspace = to_workspace(row)
    phase = oracle.phase(workspace.conditions, row.deleted > 0, row.error, row.waived)
    none = row.operation is Operation.NONE
    if row.phase != phase and not _is_wished_since(row):
        return f"the phase equals judge: {row.phase} is not {phase}"
    if none is not (row.op is None):
        return "an operation has its op_id"
    if row.phase is Phase.ERROR and not none:
        return f"ERROR implies operation NONE: {row.operation}"
    if row.waived and not row.deleted:
        return "a grace period is waived by the delete that asks for it: it is waived and not deleted"
    if none and row.volume.status and row.home is None:
        return "a volume that is ready has its generation in the row: home_ctx is NULL"
    if row.errors >= 3 and row.error not in oracle.TERMINAL:
        return "error_count >= 3 ends in ERROR"
    return None


def _is_wished_since(row: Row) -> bool:
    """deleted_at is written through the gate, the phase by the controller at its next look."""
    return row.deleted > 0 or row.phase in (Phase.DELETED, Phase.DELETING)


@check("activity")
def no_activity_is_lost(activity: Activity) -> str | None:
    """Removed from Redis only after the commit."""
    known = max(activity.last_access, activity.redis or 0, activity.unsent or 0)
    return None if known >= activity.newest else "no activity is lost: nothing has it any more"


def of_an_expiry(ttl: Ttl, expiry: DesiredState, row: Row, activity: Activity) -> str | None:
    """Idle must be known: RUNNING for as long as the TTL, no use reported, and the gateway heard."""
    if expiry is not DesiredState.STANDBY:
        return None
    if not row.phase_due:
        return "the clock of use starts at RUNNING: it had run for a moment"
    if not ttl.heard:
        return "nothing expires while a gateway is silent"
    used = ttl.reported is not None and (activity.idle is None or ttl.reported > activity.idle)
    return "a use that was reported keeps a workspace running" if used else None


def of_a_commit(
    me: str,
    row: Row,
    look: Observation,
    decision: Decision,
    after: Row,
    disk: Disk,
    store: Store,
    truth: Truth,
    names: tuple[Op, Arc],
) -> str | None:
    """What a commit of the controller may do, given the row as it is at that moment."""
    if me != "lead":
        return "a leader that wakes up late writes nothing: it has saved"
    return (
        of_a_row_change(row, decision, after)
        or _claimed_once(row, after, names)
        or _claimed_for_the_wish(row, after)
        or _really_lost(row, after, disk, store)
        or _ended_by_itself(row, decision, after)
        or _taken_home(row, after, truth, disk)
        or _may_delete(row, look, decision)
        or _may_replace(row, look, decision)
    )


def of_a_row_change(row: Row, decision: Decision, after: Row) -> str | None:
    recovered = decision.event is TimelineEvent.RECOVERED and row.request is not None
    if row.error in oracle.TERMINAL and after.error != row.error and not recovered:
        return f"ERROR stays until someone recovers it: {row.error} became {after.error}"
    if row.archive_key != after.archive_key and not recovered and after.archive_key != row.archive_op:
        return f"archive_key is that of *this* archive_op_id: {after.archive_key}, not {row.archive_op}"
    if row.home is not None and after.home != row.home and not recovered and not _removes(row):
        return "a home is given up only by an operation that removes it, or by its owner's choice"
    return None


def _removes(row: Row) -> bool:
    return row.operation is Operation.ARCHIVING and row.archive_key == row.archive_op


def _claimed_once(row: Row, after: Row, names: tuple[Op, Arc]) -> str | None:
    """One committed compare-and-swap that sets a fresh op_id, and a new archive_op_id where one is made."""
    if after.op == row.op and after.operation is row.operation:
        return None if after.archive_op == row.archive_op else "an archive_op_id is taken by a claim alone"
    if after.operation is Operation.NONE:
        return None
    if row.operation is not Operation.NONE:
        return f"at most one operation per workspace: {after.operation} claimed over {row.operation}"
    if after.op != names[0]:
        return f"a claim sets a fresh op_id: {after.op}"
    if after.operation.makes_archive and after.archive_op != names[1]:
        return f"a claim takes a new archive_op_id: {after.archive_op} was used before"
    return None


def _claimed_for_the_wish(row: Row, after: Row) -> str | None:
    """The table of section 3. A deleted workspace with a terminal error only loses its container."""
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
    wanted = oracle.operation(level, after.exists.status, has_key, row.desired.value, row.waived)
    if after.operation == wanted:
        return None
    return f"an operation leads to what is wished: {after.operation} at {level} towards {row.desired}"


def _really_lost(row: Row, after: Row, disk: Disk, store: Store) -> str | None:
    """What cannot be observed keeps its last value; it never reads as "gone"."""
    if after.error is not ErrorReason.DataLost or row.error is ErrorReason.DataLost:
        return None
    if row.home is not None:
        there = disk.home is not None and disk.marker == row.home
    else:
        there = store.complete(row.archive_key) is not None
    return "what cannot be observed never reads as gone: DataLost, and it is there" if there else None


def _ended_by_itself(row: Row, decision: Decision, after: Row) -> str | None:
    if row.operation is not Operation.ARCHIVING or decision.event is not TimelineEvent.FINISHED:
        return None
    if row.archive_key != row.archive_op:
        return "ARCHIVING is done by the archive of *this* archive_op_id alone"
    return None


def _taken_home(row: Row, after: Row, truth: Truth, disk: Disk) -> str | None:
    """A finished restore has exactly the archive's bytes, and nothing but a recovery papers a loss over."""
    if row.home is not None or after.home is None:
        return None
    if disk.home is None or disk.marker != after.home or disk.home == (truth.owed or b""):
        return None
    if truth.lost:
        return f"a home that was there and is gone is never papered over: {disk.home!r} takes its place"
    return f"a restored home has every byte: {disk.home!r} is not {truth.owed!r}"


def _may_delete(row: Row, look: Observation, decision: Decision) -> str | None:
    """archive uploaded and verified -> archive_key committed -> volume deleted. Container -> volume."""
    if not isinstance(decision.effect, DeleteVolume):
        return None
    absent = isinstance(look.container, ContainerFact) and not look.container.exists
    if _removes(row) and absent and decision.effect.generation == to_workspace(row).home_ctx:
        return None
    return "archive_key is committed, and no container there, before a volume is deleted"


def _may_replace(row: Row, look: Observation, decision: Decision) -> str | None:
    """An IDE that runs and does not answer is replaced after half of the time of its start, and once."""
    cancelled = row.request is not None and row.request.kind == "cancel"
    runs = isinstance(look.container, ContainerFact) and look.container.running
    if row.operation is not Operation.STARTING or row.op_due == 2 or cancelled or not runs:
        return None
    if decision.event is not TimelineEvent.FAILED and not isinstance(decision.effect, DeleteContainer):
        return None
    if look.silent_since != LONG_AGO or row.op_due == 0:
        return "an IDE has half of the time of its start: it is given up before"
    if decision.event is TimelineEvent.FAILED and row.errors:
        return "an operation replaces an IDE that it has started once: it does it again"
    return None


def of_a_home_removed(row: Row, home: Generation | None) -> str | None:
    """A job removes a home while the operation that wants it removed is the one under way, and no other."""
    if row.purged or (_removes(row) and row.home == home):
        return None
    return f"a forgotten job never touches a home: it removes {home} during {row.operation}"


def owed_after(truth: Truth, row: Row, decision: Decision, after: Row, disk: Disk, store: Store) -> Truth:
    """What the user is owed once this is committed: a recovery's choice, or the first, empty home."""
    if decision.event is TimelineEvent.RECOVERED and decision.keep_archives:
        if after.archive_key is None:
            return truth._replace(owed=None, lost=False)
        content = store.complete(after.archive_key)
        return truth._replace(owed=content, lost=content is None)
    if row.home is None and after.home is not None and disk.home == truth.owed and disk.marker == after.home:
        # The copy that was in a job's hands when the archive was removed has become the home.
        return truth._replace(lost=False)
    if truth.owed is not None or (after.home is None and after.archive_key is None):
        return truth
    first = truth._replace(owed=b"")
    return first._replace(lost=truth.lost or not has_copy(after, first, disk, store))


def of_a_removal(arc: Arc, gc: Gc, row: Row, store: Store) -> str | None:
    """Not one that something protects, not one seen as an orphan for less than 2 hours."""
    if protects(row, store, arc):
        return f"GC never removes a protected archive: ar{arc}"
    if dict(gc.orphans).get(arc, 0) < 1 and not _goes_at_once(row):
        return f"GC removes only what was an orphan for its grace: ar{arc}"
    return None


def _goes_at_once(row: Row) -> bool:
    """Deleted without an archive and a grace period, and purged."""
    return row.purged and row.waived


def of_a_late_removal(arc: Arc, row: Row) -> str | None:
    if not row.purged and arc in (row.archive_key, row.archive_op):
        return f"GC never removes a protected archive: ar{arc} is the workspace's, and was asked about before"
    return None


def of_a_clearing(gc: Gc, row: Row) -> str | None:
    """What a recovery leaves behind is kept for the grace period; a home stays with its workspace."""
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
    return f"what is left behind is kept for the grace period: {early}" if early else None
