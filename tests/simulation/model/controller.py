"""The controller, step by step: `coordinator/controller.py`, `coordinator/observer.py` and
`store/control.py`.

Loading the row and looking at the jobs are one step, since a row that changes later makes the save fail
whenever it was loaded. The look at the archive and the save are one, since nothing that happens between them
can tell them apart: it changes the row, and then the save fails, or it does not, and then it could as well
have happened after the save.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

from codehub.domain import decision as deciding
from codehub.domain import plan as planning
from codehub.domain.attempt_jobs import running_job_id
from codehub.domain.decision import Context, Decision, TimelineEvent
from codehub.domain.error_policy import Failure
from codehub.domain.observation import Observation
from codehub.domain.states import ErrorReason, Operation
from tests.simulation.model import contracts
from tests.simulation.model.engine import Step, rule, step
from tests.simulation.model.parts import (
    Arc,
    Container,
    Disk,
    Job,
    JobLook,
    Leader,
    Look,
    Op,
    Record,
    Row,
    Store,
    Truth,
)
from tests.simulation.model.rows import (
    arc_name,
    from_decision,
    op_name,
    present_attempt,
    to_act,
    to_observation,
    to_workspace,
)
from tests.unit.domain import builders
from tests.unit.domain.builders import NOW

LOOKING = ("jobs", "container", "volume")
Names = tuple[Op, Arc]


def epoch_is_refused(me: str) -> bool:
    """`store.leader.fence`: every transaction of a leader compares its epoch with that of the leadership."""
    return me == "stale"


def on_commit(name: str, value: Any, before: Row, after: Row) -> Any:
    """What becomes of those who had read the row, now that someone has changed it."""
    if value is None:
        return None
    return ttl_outdated(value, before, after) if name == "ttl" else outdated(name, value, before)


def outdated(me: str, leader: Leader, before: Row) -> Leader | None:
    """`control.save` compares the row with the one that was loaded: a decision on an old one is void."""
    if leader.at in LOOKING:
        return rested(me, leader)
    return leader._replace(valid=False) if leader.act is not None else leader


def ttl_outdated(ttl: Any, before: Row, after: Row) -> Any:
    if ttl.seen is None or before.phase is after.phase:
        return ttl
    return ttl._replace(seen=ttl.seen._replace(moved=True))


def rested(me: str, leader: Leader, *, seen: bool = False) -> Leader | None:
    """The end of a reconcile. A stale leader learns here, at the latest, that its time is over."""
    if me == "stale":
        return None
    return remembering(leader)._replace(seen=leader.seen or seen)


def remembering(leader: Leader) -> Leader:
    return Leader(leader.epoch, seen=leader.seen, silent=leader.silent, fenced=leader.fenced)


@rule("row lead jobs", progress=6, at="idle")
def load(row: Row, lead: Leader, jobs: tuple[Job, ...]) -> Iterator[Step]:
    """A hint may come at any time, late, twice or never."""
    if row.purged:
        return
    look = Look()
    if row.operation is not Operation.NONE:
        op, attempt = present_attempt(row)
        found = {job.name: job for job in jobs}
        job, deletion = found.get((op, attempt, "main")), found.get((op, attempt, "delete"))
        latest = deletion or job
        ours = latest is not None and bool(latest.starters & 1)
        look = Look(_job_look(job), _job_look(deletion), ours)
    yield step("leader: loads the row, looks at the jobs", lead=lead._replace(at="jobs", look=look))


def _job_look(job: Job | None) -> JobLook | None:
    if job is None:
        return None
    return JobLook("half" if job.is_running else job.state, job.reason)


@rule("lead container", progress=5, at="jobs")
def look_at_container(lead: Leader, container: Container | None) -> Iterator[Step]:
    fact = container_fact(container)
    answers = container is None or container.state in ("ready", "exited")
    seen = lead._replace(
        at="container", look=lead.look._replace(container=fact), silent=0 if answers else max(1, lead.silent)
    )
    yield step(f"leader: sees the container {container and container.state}", lead=seen)
    blind = lead._replace(at="container", look=lead.look._replace(container="unknown"), silent=0)
    yield step("leader: cannot look at the container", "unseen", lead=blind)


def container_fact(container: Container | None) -> tuple[str, Op, int] | None:
    """`runtime.status`: a container that does not answer is there all the same."""
    return None if container is None else (container.state, container.op, container.attempt)


@rule("lead disk", progress=5, at="container")
def look_at_volume(lead: Leader, disk: Disk) -> Iterator[Step]:
    fact = volume_fact(disk)
    seen = lead._replace(at="volume", look=lead.look._replace(volume=fact))
    yield step(f"leader: sees the home {disk.marker if fact else None}", lead=seen)
    blind = lead._replace(at="volume", look=lead.look._replace(volume="unknown"))
    yield step("leader: cannot look at the home", "unseen", lead=blind)


def volume_fact(disk: Disk) -> tuple[Any] | None:
    """`layout.look`: a volume is ready if and only if home and marker both exist."""
    return None if disk.home is None else (disk.marker,)


@rule("row me other store truth disk jobs", leaders=True, fresh=True, commits=True, progress=5, at="volume")
def decide(
    me: str,
    row: Row,
    leader: Leader,
    other: Leader | None,
    store: Store,
    truth: Truth,
    disk: Disk,
    jobs: tuple[Job, ...],
    names: Names,
) -> Iterator[Step]:
    """The look at the archive, the decision, and its commit."""
    if epoch_is_refused(me):
        yield step("stale leader: may not save", me=None)
        return
    loaded = row if leader.row is None else leader.row
    for cost, archive in _archive_looks(loaded, store):
        world = World(row, loaded, lock_is_held(other, jobs), store, truth, disk, jobs)
        yield from _decide(me, world, leader, archive, cost, names)


def _archive_looks(row: Row, store: Store) -> Iterator[tuple[str | None, Arc | str | None]]:
    arc = archive_looked_for(row)
    there = arc if store.complete(arc) is not None else None
    if planning.must_observe_archive(to_workspace(row)) and arc is not None:
        yield None, unobservable_or(there)
        yield "unseen", unobservable_or("unknown")
        return
    yield None, "unlooked"
    if row.archive_key is not None and there is None:
        # The hourly audit has not found it in its listing.
        yield None, None


def archive_looked_for(row: Row) -> Arc | None:
    """`observer._archive`: the archive of the operation under way, else the one that the row names."""
    return row.archive_op if row.operation.makes_archive else row.archive_key


def unobservable_or(fact: Arc | str | None) -> Arc | str | None:
    """`observer._archive` turns a store that cannot be looked at into Unknown."""
    return fact


@cache
def context_for(names: Names) -> Context:
    return builders.context(op_id=op_name(names[0]), archive_op_id=arc_name(names[1]))


@cache
def planned(
    row: Row, seen: Look, archive: Arc | str | None, silent: int, known: bool, names: Names
) -> tuple[Observation, Decision, Row]:
    """The real decision. Remembered, and forgotten when a model is made anew."""
    look = to_observation(seen, archive, silent, not known)
    decision = planning.plan(to_workspace(row), look, context_for(names))
    return look, decision, from_decision(decision)


class World(NamedTuple):
    """What a decision is saved in."""

    row: Row
    loaded: Row
    locked: bool
    store: Store
    truth: Truth
    disk: Disk
    jobs: tuple[Job, ...]


def _decide(
    me: str, world: World, leader: Leader, archive: Arc | str | None, cost: str | None, names: Names
) -> Iterator[Step]:
    row, disk = world.row, world.disk
    look, decision, after = planned(world.loaded, leader.look, archive, leader.silent, leader.seen, names)
    after = _with_wishes_of(row, decision, after)
    if breaks_off(world.loaded, decision) and not leader.fenced:
        yield _fence(me, leader, disk, world.locked, cost)
        return
    if decision.effect is None:
        following = rested(me, leader, seen=True)
    else:
        act = to_act(decision.effect)
        lives = running_job_id(to_workspace(world.loaded), look) is not None
        following = remembering(leader)._replace(at="act", act=act, seen=True, beside_job=lives)
    broken = contracts.of_a_commit(me, row, look, decision, after, disk, world.store, world.truth, names)
    if broken is not None:
        broken = f"{broken}\n  row      {row}\n  look     {look}\n  decision {decision}\n  after    {after}"
    yield step(
        f"{me}: {decision.sentence}",
        cost,
        broken,
        row=after,
        me=following,
        disk=disk,
        store=_recorded(world.store, decision, after),
        truth=contracts.owed_after(world.truth, row, decision, after, disk, world.store),
        jobs=_forgotten(world.jobs, row, after),
    )


def lock_is_held(other: Leader | None, jobs: tuple[Job, ...]) -> bool:
    """A job holds the workspace's lock while it works, a leader while it starts a container."""
    return (other is not None and other.at == "held") or any(job.has_lock for job in jobs)


def _fence(me: str, leader: Leader, disk: Disk, locked: bool, cost: str | None) -> Step:
    """`controller._fence`: the end is saved only on a look that is younger than the fence."""
    if locked:
        return step(f"{me}: an operation cannot end yet, the home is locked", cost, me=rested(me, leader))
    raised = disk._replace(fence=max(disk.fence, leader.epoch))
    after = remembering(leader)._replace(seen=True, fenced=True)
    return step(f"{me}: fences the disk before an operation breaks off", cost, disk=raised, me=after)


def breaks_off(row: Row, decision: Decision) -> bool:
    """`controller._breaks_off`: before such an end is saved, the disk is fenced against earlier leaders."""
    ends = row.operation is not Operation.NONE and decision.after.operation is Operation.NONE
    return ends and row.operation.moves_home and decision.event is not TimelineEvent.FINISHED


def _with_wishes_of(row: Row, decision: Decision, after: Row) -> Row:
    """The controller writes its own columns; what the gate writes stays as it is, unless it is consumed."""
    taken = decision.consume or decision.desired is not None
    return after._replace(
        desired=row.desired if decision.desired is None else decision.desired,
        deleted=row.deleted,
        purged=row.purged,
        waived=row.waived,
        request=None if taken else row.request,
    )


def _recorded(store: Store, decision: Decision, after: Row) -> Store:
    records = {item.arc: item for item in store.records}
    if decision.archive is not None and after.archive_key is not None:
        records.setdefault(after.archive_key, Record(after.archive_key))
    if decision.keep_archives:
        records = {arc: item._replace(kept=True) for arc, item in records.items()}
    return store._replace(records=tuple(sorted(records.values())))


def _forgotten(jobs: tuple[Job, ...], before: Row, after: Row) -> tuple[Job, ...]:
    """Once an operation is over, what its dead jobs have left is removed."""
    if before.op is None or after.op is not None:
        return jobs
    return tuple(job for job in jobs if job.op != before.op or job.is_running)


@rule("row jobs lead stale", progress=2)
def forget(row: Row, jobs: tuple[Job, ...], lead: Leader, stale: Leader | None) -> Iterator[Step]:
    """The GC runner removes the reports of dead jobs whose operation is over, if no leader did."""
    pending = {item.act.op for item in (lead, stale) if item is not None and item.act is not None}
    kept = tuple(
        job for job in jobs if job.is_running or (job.op is not None and job.op in {row.op, *pending})
    )
    if kept != jobs:
        yield step("the report of a dead job is removed", jobs=kept)


@rule("row me other disk jobs", leaders=True, commits=True, progress=4, at="failed")
def save_failure(
    me: str, row: Row, leader: Leader, other: Leader | None, disk: Disk, jobs: tuple[Job, ...]
) -> Iterator[Step]:
    """An effect has failed: that is counted, unless the row has changed since the effect was decided."""
    assert leader.failure is not None
    if epoch_is_refused(me) or not leader.valid or leader.beside_job:
        yield step(f"{me}: does not count that its effect has failed", me=rested(me, leader))
        return
    workspace = to_workspace(row)
    failure = Failure(leader.failure, "it failed")
    decision = deciding.settle(deciding.failed(workspace, failure, context_for((Op(16), Arc(16)))), NOW)
    after = from_decision(decision)
    if breaks_off(row, decision) and not leader.fenced:
        yield _fence(me, leader, disk, lock_is_held(other, jobs), None)
        return
    broken = contracts.of_a_row_change(row, decision, after)
    kept = _forgotten(jobs, row, after)
    yield step(
        f"{me}: {decision.sentence}", None, broken, row=after, disk=disk, jobs=kept, me=rested(me, leader)
    )


def failed(me: str, leader: Leader, reason: ErrorReason) -> Leader:
    return leader._replace(at="failed", failure=reason)
