"""Events from outside: time, crashes, outside deletions, and changes of the leader."""

from collections.abc import Iterator

from codehub.domain.states import Operation, Phase
from tests.simulation.model import contracts
from tests.simulation.model.engine import DELETING, Step, rule, step
from tests.simulation.model.state_parts import (
    Activity,
    Container,
    Disk,
    Expected,
    Gc,
    Job,
    Leader,
    Row,
    Stamp,
    Store,
    Stored,
    Ttl,
)

CAN_CONTINUE_AT = ("volume", "act", "held", "fenced", "failed")
"""Where a leader that hangs can continue. Anywhere else it would start over and be rejected."""


@rule("row", progress=1)
def retry_becomes_due(row: Row) -> Iterator[Step]:
    if row.retry == "waiting":
        yield step("time: the retry is due", row=row._replace(retry="due"))


@rule("row lead", progress=1)
def silence_gets_long(row: Row, lead: Leader) -> Iterator[Step]:
    if lead.silent == 1 and row.ready.status:
        yield step("time: the container has not answered for 30 s", lead=lead._replace(silent=2))


@rule("row lead container", progress=1)
def start_takes_half_its_time(row: Row, lead: Leader, container: Container | None) -> Iterator[Step]:
    """Let time pass only where it matters: a leader observes a start that waits for a hung IDE."""
    hung = container is not None and container.state == "hung"
    waits = lead.silent == 1 or (lead.silent == 2 and row.op_due == 0)
    if row.operation is Operation.STARTING and row.op_due < 2 and hung and waits:
        label = "time: half of the time for the start is over"
        yield step(label, row=row._replace(op_due=1), lead=lead._replace(silent=2))


@rule("row activity", needs="time timeout")
def time_passes(row: Row, activity: Activity) -> Iterator[Step]:
    if row.operation is not Operation.NONE and row.op_due < 2:
        yield step(f"time: {row.operation} has made no progress", "timeout", row=row._replace(op_due=2))
    if row.started == "recent" and row.errors:
        yield step("time: ready for ten minutes", "time", row=row._replace(started="stable"))
    if row.phase is Phase.STANDBY and not row.phase_due:
        yield step("time: the archive TTL is over", "time", row=row._replace(phase_due=True))
    if row.operation is Operation.STARTING and activity.idle != _newest(activity):
        yield step(
            "time: the start takes longer than the standby TTL", "time", activity=_without_use(activity)
        )
    if row.phase is Phase.RUNNING and (activity.idle != _newest(activity) or not row.phase_due):
        due = row._replace(phase_due=True)
        yield step("time: the standby TTL is over", "time", row=due, activity=_without_use(activity))
    if row.deleted == 1 and not row.purged:
        yield step("time: the grace period of the trash is over", "time", row=row._replace(deleted=2))


def _without_use(activity: Activity) -> Activity:
    """Return activity in which every use, and the last report of the gateway, is long ago."""
    return activity._replace(idle=_newest(activity), sent=False, recent_report=False)


def _newest(activity: Activity) -> Stamp:
    return max(activity.newest, activity.held)


@rule("row activity", needs="hold")
def time_passes_without_a_person(row: Row, activity: Activity) -> Iterator[Step]:
    """Programs may have used it since: their uses are not long ago."""
    if row.phase is Phase.RUNNING and activity.limit != activity.person:
        label = "time: no person has used it for as long as programs may keep it awake"
        unknown = activity._replace(sent=False, recent_report=False, limit=activity.person)
        yield step(label, "time", row=row._replace(phase_due=True), activity=unknown)


@rule("gc store", needs="time")
def graces_end(gc: Gc, store: Store) -> Iterator[Step]:
    ages = [age for _, age in (*gc.orphans, *gc.remains)]
    if 0 in ages:
        yield step("time: the orphan grace is over", "time", gc=_aged(gc, 1))
    if any(age < 2 for age in ages) or any(item.kept for item in store.records):
        records = tuple(item._replace(kept=False) for item in store.records)
        label = "time: the retention is over"
        yield step(label, "time", gc=_aged(gc, 2), store=store._replace(records=records))


def _aged(gc: Gc, least: int) -> Gc:
    return gc._replace(
        orphans=tuple((arc, max(age, least)) for arc, age in gc.orphans),
        remains=tuple((name, max(age, least)) for name, age in gc.remains),
    )


@rule("container", progress=1)
def container_becomes_ready(container: Container | None) -> Iterator[Step]:
    if container is not None and container.state == "starting":
        yield step("the IDE answers", container=container._replace(state="ready"))


@rule("row container", needs="die outside timeout")
def container_fails(row: Row, container: Container | None) -> Iterator[Step]:
    if container is None:
        return
    if container.state != "exited":
        yield step("the container dies", "die", container=container._replace(state="exited"))
    if container.state == "ready":
        # A leader that never observed it ready takes it for one that never answers: a timeout.
        cost = "die" if row.ready.status else "timeout"
        yield step("the IDE stops answering", cost, container=container._replace(state="hung"))
    yield step("someone removes the container", "outside", container=None)


@rule("row expected disk store", flags=True, needs="outside")
def outside_deletions(row: Row, expected: Expected, disk: Disk, store: Store, flags: int) -> Iterator[Step]:
    if disk.home is not None:
        yield _deleted("someone removes the home", row, expected, disk._replace(home=None), store, flags)
        if disk.marker is not None:
            unmarked = disk._replace(marker=None)
            yield _deleted("someone removes the marker of the home", row, expected, unmarked, store, flags)
    for item in store.archives:
        left = store.without(item.arc)
        yield _deleted(f"someone removes the archive ar{item.arc}", row, expected, disk, left, flags)
        if item.complete:
            half = store.put(Stored(item.arc, item.content, False))
            yield _deleted(f"someone removes the .meta of ar{item.arc}", row, expected, disk, half, flags)


def _deleted(label: str, row: Row, expected: Expected, disk: Disk, store: Store, flags: int) -> Step:
    """Delete something from outside. If it was the last copy, the content is lost.

    Once the deletion of the volume is decided, the archive that it relies on is the last copy.
    """
    home = disk._replace(home=None) if flags & DELETING else disk
    lost = expected.lost or (
        expected.content is not None and not contracts.has_copy(row, expected, home, store)
    )
    return step(label, "outside", disk=disk, store=store, expected=expected._replace(lost=lost))


@rule("lead jobs ttl gc", needs="crash", progress=1)
def leader_dies(lead: Leader, jobs: tuple[Job, ...], ttl: Ttl, gc: Gc) -> Iterator[Step]:
    """Kill the leader. Another coordinator takes over at once: nothing depends on the delay."""
    forgotten = tuple(job._replace(starters=job.starters & 2) for job in jobs)
    yield step(
        "the leader is killed; another leads",
        None if lead.at == "dying" else "crash",
        lead=Leader(lead.epoch + 1),
        jobs=forgotten,
        ttl=Ttl(),
        gc=Gc(orphans=gc.orphans, remains=gc.remains, empty_database=gc.empty_database),
    )


@rule("lead jobs", needs="hang")
def leader_hangs(lead: Leader, jobs: tuple[Job, ...]) -> Iterator[Step]:
    """Pause the leader. Another one leads, and the stale one may later continue where it was."""
    if lead.at == "dying":
        return
    handed = tuple(job._replace(starters=2 if job.starters & 1 else 0) for job in jobs)
    stale = lead if lead.at in CAN_CONTINUE_AT else None
    yield step(
        "the leader hangs; another leads", "hang", lead=Leader(lead.epoch + 1), stale=stale, jobs=handed
    )
