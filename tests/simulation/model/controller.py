"""Steps of the controller: `controller.py`, `observer.py` and `database/leader_database.py`.

Loading the row and observing the jobs are one step: a later change of the row makes the save fail,
whenever the row was loaded. Observing the archive and saving are one step too. An event between
them either changes the row, so that the save fails, or could as well happen after the save.
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
from codehub.domain.restore_request import must_observe_chosen
from codehub.domain.states import ErrorReason, Operation
from tests.simulation.model import contracts
from tests.simulation.model.engine import Step, rule, step
from tests.simulation.model.row_conversion import (
    arc_name,
    from_decision,
    op_name,
    present_attempt,
    to_act,
    to_observation,
    to_workspace,
)
from tests.simulation.model.state_parts import (
    Arc,
    Container,
    Disk,
    Expected,
    Job,
    Leader,
    ObservedJob,
    Op,
    PartialObservation,
    Record,
    Row,
    Store,
)
from tests.unit.domain import builders
from tests.unit.domain.builders import NOW

OBSERVING = ("jobs", "container", "volume")
Names = tuple[Op, Arc]


def epoch_is_refused(me: str) -> bool:
    """`leadership.fence`: every transaction of a leader compares its epoch with the current one."""
    return me == "stale"


def on_commit(name: str, value: Any, before: Row, after: Row) -> Any:
    """Update the readers of a row after a change of the row."""
    if value is None:
        return None
    return ttl_outdated(value, before, after) if name == "ttl" else outdated(name, value, before)


def outdated(me: str, leader: Leader, before: Row) -> Leader | None:
    """A save compares the row with the one that was loaded: a decision on an old row is void."""
    if leader.at in OBSERVING:
        return after_reconcile(me, leader)
    return leader._replace(valid=False) if leader.act is not None else leader


def ttl_outdated(ttl: Any, before: Row, after: Row) -> Any:
    if ttl.seen is None or before.phase is after.phase:
        return ttl
    return ttl._replace(seen=ttl.seen._replace(moved=True))


def after_reconcile(me: str, leader: Leader, *, seen: bool = False) -> Leader | None:
    """End a reconcile. A stale leader notices here at the latest that its term is over."""
    if me == "stale":
        return None
    return without_progress(leader)._replace(seen=leader.seen or seen)


def without_progress(leader: Leader) -> Leader:
    return Leader(leader.epoch, seen=leader.seen, silent=leader.silent, fenced=leader.fenced)


@rule("row lead jobs", progress=6, at="idle")
def load(row: Row, lead: Leader, jobs: tuple[Job, ...]) -> Iterator[Step]:
    """Start a reconcile. A hint may come at any time, late, twice or never."""
    if row.purged:
        return
    observed = PartialObservation()
    if row.operation is not Operation.NONE:
        op, attempt = present_attempt(row)
        found = {job.name: job for job in jobs}
        job, deletion = found.get((op, attempt, "main")), found.get((op, attempt, "delete"))
        latest = deletion or job
        ours = latest is not None and bool(latest.starters & 1)
        observed = PartialObservation(_observed_job(job), _observed_job(deletion), ours)
    yield step("leader: loads the row, observes the jobs", lead=lead._replace(at="jobs", observed=observed))


def _observed_job(job: Job | None) -> ObservedJob | None:
    if job is None:
        return None
    return ObservedJob("half" if job.is_running else job.state, job.reason)


@rule("lead container", progress=5, at="jobs")
def observe_container(lead: Leader, container: Container | None) -> Iterator[Step]:
    fact = container_fact(container)
    answers = container is None or container.state in ("ready", "exited")
    seen = lead._replace(
        at="container",
        observed=lead.observed._replace(container=fact),
        silent=0 if answers else max(1, lead.silent),
    )
    yield step(f"leader: observes the container {container and container.state}", lead=seen)
    unobserved = lead._replace(at="container", observed=lead.observed._replace(container="unknown"), silent=0)
    yield step("leader: cannot observe the container", "unseen", lead=unobserved)


def container_fact(container: Container | None) -> tuple[str, Op, int] | None:
    """`runtime.status`: a container that does not answer still exists."""
    return None if container is None else (container.state, container.op, container.attempt)


@rule("lead disk", progress=5, at="container")
def observe_volume(lead: Leader, disk: Disk) -> Iterator[Step]:
    fact = volume_fact(disk)
    seen = lead._replace(at="volume", observed=lead.observed._replace(volume=fact))
    yield step(f"leader: observes the home {disk.marker if fact else None}", lead=seen)
    unobserved = lead._replace(at="volume", observed=lead.observed._replace(volume="unknown"))
    yield step("leader: cannot observe the home", "unseen", lead=unobserved)


def volume_fact(disk: Disk) -> tuple[Any] | None:
    """`volumes.status`: a volume is ready if and only if home and marker both exist."""
    return None if disk.home is None else (disk.marker,)


@rule(
    "row me other store expected disk jobs", leaders=True, fresh=True, commits=True, progress=5, at="volume"
)
def decide(
    me: str,
    row: Row,
    leader: Leader,
    other: Leader | None,
    store: Store,
    expected: Expected,
    disk: Disk,
    jobs: tuple[Job, ...],
    names: Names,
) -> Iterator[Step]:
    """Observe the archive, decide, and commit."""
    if epoch_is_refused(me):
        yield step("stale leader: may not save", me=None)
        return
    loaded = row if leader.row is None else leader.row
    context = SaveContext(row, loaded, lock_is_held(other, jobs), store, expected, disk, jobs)
    for cost, archive in _archive_observations(loaded, store):
        for chosen_cost, chosen in _chosen_observations(loaded, store):
            if cost is None or chosen_cost is None:
                spent = cost or chosen_cost
                yield from _save_decision(me, context, leader, (archive, chosen), spent, names)


def _chosen_observations(row: Row, store: Store) -> Iterator[tuple[str | None, Arc | str | None]]:
    """Observe the archive that a request to restore names."""
    if row.request is None or not must_observe_chosen(to_workspace(row)):
        yield None, "skipped"
        return
    yield None, archive_fact(row.request.arc if store.complete(row.request.arc) is not None else None)
    yield "unseen", archive_fact("unknown")


def _archive_observations(row: Row, store: Store) -> Iterator[tuple[str | None, Arc | str | None]]:
    arc = observed_archive(row)
    there = arc if store.complete(arc) is not None else None
    if planning.must_observe_archive(to_workspace(row)) and arc is not None:
        yield None, archive_fact(there)
        yield "unseen", archive_fact("unknown")
        return
    yield None, "skipped"
    if row.archive_key is not None and there is None:
        # The hourly comparison did not find it in the listing.
        yield None, None


def observed_archive(row: Row) -> Arc | None:
    """`observer._archive`: the archive of the current operation, or else the row's."""
    return row.archive_op if row.operation.makes_archive else row.archive_key


def archive_fact(fact: Arc | str | None) -> Arc | str | None:
    """`observer._archive` turns a store that cannot be observed into Unknown."""
    return fact


@cache
def context_for(names: Names) -> Context:
    return builders.context(op_id=op_name(names[0]), archive_op_id=arc_name(names[1]))


Archives = tuple[Arc | str | None, Arc | str | None]
"""Observations of the row's archive and of the chosen one."""


@cache
def cached_plan(
    row: Row, seen: PartialObservation, archives: Archives, silent: int, known: bool, names: Names
) -> tuple[Observation, Decision, Row]:
    """Return the decision of the product, from a cache that each new model clears."""
    archive, chosen = archives
    observed = to_observation(seen, archive, silent, not known, chosen)
    decision = planning.plan(to_workspace(row), observed, context_for(names))
    return observed, decision, from_decision(decision)


class SaveContext(NamedTuple):
    """The parts of the state that a save depends on."""

    row: Row
    loaded: Row
    locked: bool
    store: Store
    expected: Expected
    disk: Disk
    jobs: tuple[Job, ...]


def _save_decision(
    me: str, context: SaveContext, leader: Leader, archives: Archives, cost: str | None, names: Names
) -> Iterator[Step]:
    row, disk = context.row, context.disk
    observed, decision, after = cached_plan(
        context.loaded, leader.observed, archives, leader.silent, leader.seen, names
    )
    after = _with_requests_of(row, decision, after)
    if aborts_home_move(context.loaded, decision) and not leader.fenced:
        yield _raise_fence(me, leader, disk, context.locked, cost)
        return
    if decision.effect is None:
        following = after_reconcile(me, leader, seen=True)
    else:
        act = to_act(decision.effect)
        job_runs = running_job_id(to_workspace(context.loaded), observed) is not None
        following = without_progress(leader)._replace(at="act", act=act, seen=True, job_runs=job_runs)
    broken = contracts.check_commit(
        me, row, observed, decision, after, disk, context.store, context.expected, names
    )
    if broken is not None:
        broken = f"{broken}\n  row {row}\n  observed {observed}\n  decision {decision}\n  after {after}"
    yield step(
        f"{me}: {decision.sentence}",
        cost,
        broken,
        row=after,
        me=following,
        disk=disk,
        store=_with_archive_record(context.store, decision, after),
        expected=contracts.expected_after(context.expected, row, decision, after, disk, context.store),
        jobs=_without_job_reports(context.jobs, row, after),
    )


def lock_is_held(other: Leader | None, jobs: tuple[Job, ...]) -> bool:
    """Return whether a job that works, or a leader that starts a container, holds the lock."""
    return (other is not None and other.at == "held") or any(job.has_lock for job in jobs)


def _raise_fence(me: str, leader: Leader, disk: Disk, locked: bool, cost: str | None) -> Step:
    """`controller._fence`: the end is saved only on an observation that is newer than the fence."""
    if locked:
        return step(
            f"{me}: an operation cannot end yet, the home is locked", cost, me=after_reconcile(me, leader)
        )
    raised = disk._replace(fence=max(disk.fence, leader.epoch))
    after = without_progress(leader)._replace(seen=True, fenced=True)
    return step(f"{me}: fences the disk before it ends an operation", cost, disk=raised, me=after)


def aborts_home_move(row: Row, decision: Decision) -> bool:
    """`controller._aborts_home_move`: before such an end is saved, the disk is fenced."""
    ends = row.operation is not Operation.NONE and decision.after.operation is Operation.NONE
    return ends and row.operation.moves_home and decision.event is not TimelineEvent.FINISHED


def _with_requests_of(row: Row, decision: Decision, after: Row) -> Row:
    """Keep the columns that the gate writes, unless the decision consumes the request."""
    taken = decision.consume or decision.desired is not None
    return after._replace(
        desired=row.desired if decision.desired is None else decision.desired,
        deleted=row.deleted,
        purged=row.purged,
        waived=row.waived,
        request=None if taken else row.request,
    )


def _with_archive_record(store: Store, decision: Decision, after: Row) -> Store:
    records = {item.arc: item for item in store.records}
    if decision.archive is not None and after.archive_key is not None:
        records.setdefault(after.archive_key, Record(after.archive_key))
    if decision.keep_archives:
        records = {arc: item._replace(kept=True) for arc, item in records.items()}
    return store._replace(records=tuple(sorted(records.values())))


def _without_job_reports(jobs: tuple[Job, ...], before: Row, after: Row) -> tuple[Job, ...]:
    """Remove the reports of dead jobs once their operation is over."""
    if before.op is None or after.op is not None:
        return jobs
    return tuple(job for job in jobs if job.op != before.op or job.is_running)


@rule("row jobs lead stale", progress=2)
def forget(row: Row, jobs: tuple[Job, ...], lead: Leader, stale: Leader | None) -> Iterator[Step]:
    """The GC runner removes the reports of dead jobs that no leader has removed."""
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
    """Count a failed effect, unless the row has changed since the decision."""
    assert leader.failure is not None
    if epoch_is_refused(me) or not leader.valid or leader.job_runs:
        yield step(f"{me}: does not count that its effect has failed", me=after_reconcile(me, leader))
        return
    workspace = to_workspace(row)
    failure = Failure(leader.failure, "it failed")
    decision = deciding.with_phase(
        deciding.record_failure(workspace, failure, context_for((Op(16), Arc(16)))), NOW
    )
    after = from_decision(decision)
    if aborts_home_move(row, decision) and not leader.fenced:
        yield _raise_fence(me, leader, disk, lock_is_held(other, jobs), None)
        return
    broken = contracts.check_row_change(row, decision, after)
    kept = _without_job_reports(jobs, row, after)
    yield step(
        f"{me}: {decision.sentence}",
        None,
        broken,
        row=after,
        disk=disk,
        jobs=kept,
        me=after_reconcile(me, leader),
    )


def failed(me: str, leader: Leader, reason: ErrorReason) -> Leader:
    return leader._replace(at="failed", failure=reason)
