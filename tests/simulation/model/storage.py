"""The steps of storage jobs (`storage/jobs/work.py`). A job may die or pause for long at each step.

A half upload and a half restore have a part of the bytes. The rest of an upload is read from the
home as it is by then.
"""

from collections.abc import Iterator

from codehub.domain.states import ErrorReason
from tests.simulation.model import contracts
from tests.simulation.model.controller import volume_fact
from tests.simulation.model.effects import disk_refuses, job_order
from tests.simulation.model.engine import HELD, Step, rule, step
from tests.simulation.model.state_parts import Container, Disk, Generation, Job, Row, Store, Stored

ASIDE, STAGING = ".aside-", ".staging-"


class JobFailed(Exception):  # noqa: N818 - a fact, not a fault
    """The job ends with a result that contains the reason."""

    def __init__(self, reason: ErrorReason) -> None:
        super().__init__(reason)
        self.reason = reason


JobOutcome = tuple[Job, Disk, Store]


@rule("jobs disk store container", flags=True, progress=3)
def work(
    jobs: tuple[Job, ...], disk: Disk, store: Store, container: Container | None, flags: int
) -> Iterator[Step]:
    locked = bool(flags & HELD) or any(job.has_lock for job in jobs)
    for job in jobs:
        if not job.is_running or is_about_to_remove(job, disk):
            continue
        others = tuple(item for item in jobs if item is not job)
        yield step(
            f"the job {job.kind} is killed", "kill", jobs=_with_job(others, job._replace(state="gone"))
        )
        if job.state == "acted":
            yield step(f"the job {job.kind} is done", jobs=_with_job(others, job._replace(state="done")))
            continue
        yield from _failures(job, others, disk)
        if job.state != "queued" or not locked:
            yield _work_step(job, others, disk, store, container)


def is_about_to_remove(job: Job, disk: Disk) -> bool:
    meant = generation_is_meant(disk, job.home) and not disk_refuses(job.epoch, disk)
    return job.kind in ("delete", "purge") and job.state == "queued" and meant


@rule("jobs disk row container", flags=True, progress=3)
def remove(
    jobs: tuple[Job, ...], disk: Disk, row: Row, container: Container | None, flags: int
) -> Iterator[Step]:
    """The step of `work._delete` that moves a home away, which has more contracts to keep."""
    locked = bool(flags & HELD) or any(job.has_lock for job in jobs)
    for job in jobs:
        if not is_about_to_remove(job, disk):
            continue
        others = tuple(item for item in jobs if item is not job)
        yield step(
            f"the job {job.kind} is killed", "kill", jobs=_with_job(others, job._replace(state="gone"))
        )
        yield from _failures(job, others, disk)
        if not locked:
            after, left, _ = _next_step(job, disk, Store())
            broken = contracts.check_home_removal(row, job.home)
            broken = broken or _removed_under_container(job, disk, left, container)
            label = f"the job {job.kind} moves the home away"
            yield step(label, None, broken, jobs=_with_job(others, after), disk=left)


def _failures(job: Job, others: tuple[Job, ...], disk: Disk) -> Iterator[Step]:
    """Fail because of the store, the disk, or a lock that is held too long."""
    if job.state == "marked":
        return
    idle_gc = job._replace(state="failed", reason=ErrorReason.Unreachable)
    left = disk._replace(staging=None) if job.kind == "restore" and job.state == "half" else disk
    yield step(f"the job {job.kind} fails", "fault", jobs=_with_job(others, idle_gc), disk=left)


def _work_step(
    job: Job, others: tuple[Job, ...], disk: Disk, store: Store, container: Container | None
) -> Step:
    broken = None
    if job.kind == "archive" and container is not None and container.state != "exited":
        reads = job.state == "half" or (not disk_refuses(job.epoch, disk) and disk.marker == job.home)
        broken = "an archive is never taken under a container: a job reads its home" if reads else None
    if job.state == "queued" and disk_refuses(job.epoch, disk):
        label = f"the job {job.kind} of an earlier leader ends without a report"
        return step(label, jobs=_with_job(others, job._replace(state="gone")))
    try:
        after, left, stored = _next_step(job, disk, store)
    except JobFailed as problem:
        clean = disk._replace(staging=None) if job.kind == "restore" and job.state == "half" else disk
        idle_gc = job._replace(state="failed", reason=problem.reason)
        return step(f"the job {job.kind} ends: {problem.reason}", jobs=_with_job(others, idle_gc), disk=clean)
    broken = broken or _rewritten(store, stored)
    label = f"the job {job.kind} moves on to {after.state}"
    return step(label, None, broken, jobs=_with_job(others, after), disk=left, store=stored)


def _rewritten(before: Store, after: Store) -> str | None:
    for old in before.archives:
        new = after.find(old.arc)
        if old.complete and new != old:
            return f"a complete archive is never written again: {old} became {new}"
    return None


def _removed_under_container(job: Job, before: Disk, after: Disk, container: Container | None) -> str | None:
    removed = before.home is not None and after.home is None
    if removed and container is not None and container.state != "exited":
        return f"container deleted, then volume: the job {job.kind} removes the home under {container}"
    return None


def _with_job(others: tuple[Job, ...], job: Job) -> tuple[Job, ...]:
    return tuple(sorted((*others, job), key=job_order))


def _next_step(job: Job, disk: Disk, store: Store) -> JobOutcome:
    if job.state == "queued":
        disk = disk._replace(fence=job.epoch)
    match job.kind:
        case "archive" | "empty":
            return _archive(job, disk, store)
        case "restore":
            return _restore(job, disk, store)
        case "clear":
            return _clear(job, disk, store)
        case _:
            return _delete(job, disk, store)


def _archive(job: Job, disk: Disk, store: Store) -> JobOutcome:
    assert job.arc is not None
    home = b"" if job.kind == "empty" else disk.home
    if job.state == "queued":
        if job.kind == "archive" and not generation_is_meant(disk, job.home):
            raise JobFailed(ErrorReason.ActionFailed)
        if store.complete(job.arc) is not None:
            return job._replace(state="acted"), disk, store
        assert home is not None
        part = home[: len(home) // 2]
        return job._replace(state="half", read=part), disk, store.put(Stored(job.arc, part, False))
    if home is None:
        raise JobFailed(ErrorReason.ActionFailed)
    whole = job.read + home[len(job.read) :]
    return job._replace(state="acted", read=b""), disk, store.put(Stored(job.arc, whole, True))


def generation_is_meant(disk: Disk, home: Generation | None) -> bool:
    """Return whether the home on the disk is of this generation."""
    return disk.home is not None and disk.marker == home


def _restore(job: Job, disk: Disk, store: Store) -> JobOutcome:
    assert job.op is not None
    if job.state == "marked":
        return job._replace(state="acted"), disk._replace(home=disk.staging, staging=None), store
    content = store.complete(job.arc)
    if job.state == "queued":
        there = volume_fact(disk)
        if there is not None and there[0] is not None:
            if there[0].op == job.op:
                return job._replace(state="acted"), disk, store
            raise JobFailed(ErrorReason.ActionFailed)
        if content is None:
            raise JobFailed(ErrorReason.DataLost)
        return job._replace(state="half"), disk._replace(staging=content[: len(content) // 2]), store
    if content is None:
        raise JobFailed(ErrorReason.DataLost)
    asides = disk.asides if disk.home is None else (*disk.asides, disk.home)
    marker = Generation(job.op, job.arc)
    swapped = disk._replace(staging=content, marker=marker, home=None, asides=asides)
    return job._replace(state="marked"), swapped, store


def _delete(job: Job, disk: Disk, store: Store) -> JobOutcome:
    if job.state == "half":
        return job._replace(state="acted"), disk._replace(marker=None), store
    if disk.home is None:
        return job._replace(state="acted"), disk._replace(marker=None), store
    if not generation_is_meant(disk, job.home):
        raise JobFailed(ErrorReason.ActionFailed)
    return job._replace(state="half"), disk._replace(home=None), store


def _clear(job: Job, disk: Disk, store: Store) -> JobOutcome:
    """Remove only the leftovers that were listed."""
    gone = sum(name.startswith(ASIDE) for name in job.names)
    staging = None if STAGING in job.names else disk.staging
    return job._replace(state="acted"), disk._replace(asides=disk.asides[gone:], staging=staging), store
