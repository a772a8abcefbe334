"""Effects as `coordinator/effect_executor.py` carries them out, on a model of the disk."""

from collections.abc import Iterator
from typing import Any

from codehub.domain.states import ErrorReason
from tests.simulation.model import controller
from tests.simulation.model.controller import after_reconcile, failed, lock_is_held, volume_fact
from tests.simulation.model.engine import Step, rule, step
from tests.simulation.model.state_parts import Act, Container, Disk, Generation, Job, Leader

JOBS = ("archive", "empty", "restore", "delete")
FENCES_OUT_CONTAINERS = ("archive", "delete", "restore", "provision")
NAMES_A_GENERATION = ("archive", "delete")


def disk_refuses(epoch: int, disk: Disk) -> bool:
    """Return whether a newer leader has already changed this disk."""
    return disk.fence > epoch


def dying(me: str, leader: Leader) -> Leader | None:
    """Kill a leader in the middle of an effect. The rest is the same as after any crash."""
    return None if me == "stale" else Leader(leader.epoch, "dying")


@rule("me other disk jobs container", leaders=True, progress=4, at="act")
def act(
    me: str, leader: Leader, other: Leader | None, disk: Disk, jobs: tuple[Job, ...], container: Any
) -> Iterator[Step]:
    effect = leader.act
    assert effect is not None
    yield step(f"{me}: {effect.kind} fails", "fault", me=failed(me, leader, ErrorReason.ActionFailed))
    if effect.kind == "stop":
        yield from _stop(me, leader)
    elif effect.kind.startswith("cancel"):
        yield from _cancel(me, leader, effect, jobs)
    elif lock_is_held(other, jobs):
        yield step(f"{me}: {effect.kind} waits, the home is locked", me=after_reconcile(me, leader))
    elif disk_refuses(leader.epoch, disk):
        yield step(f"{me}: {effect.kind} is rejected by the disk", me=after_reconcile(me, leader))
    else:
        yield from _under_lock(me, leader, effect, disk._replace(fence=leader.epoch), container)


def _stop(me: str, leader: Leader) -> Iterator[Step]:
    yield step(f"{me}: removes the container", container=None, me=after_reconcile(me, leader))
    raised = failed(me, leader, ErrorReason.ActionFailed)
    yield step(f"{me}: removes the container, and reports a failure", "fault", container=None, me=raised)


def _cancel(me: str, leader: Leader, effect: Act, jobs: tuple[Job, ...]) -> Iterator[Step]:
    name = (effect.op, effect.attempt, "delete" if effect.kind == "cancel-delete" else "main")
    killed = tuple(job._replace(state="gone") if job.name == name and job.is_running else job for job in jobs)
    yield step(f"{me}: kills the job", jobs=killed, me=after_reconcile(me, leader))
    yield step(f"{me}: the job does not die", "fault", me=after_reconcile(me, leader))


def _under_lock(
    me: str, leader: Leader, effect: Act, disk: Disk, container: Container | None
) -> Iterator[Step]:
    if effect.kind == "aside":
        yield from _set_aside(me, leader, effect, disk)
    elif effect.kind == "start":
        yield from _hold(me, leader, effect, disk)
    elif effect.kind in FENCES_OUT_CONTAINERS:
        yield from _require_no_container(me, leader, effect, disk, container)
    else:
        yield step(f"{me}: {effect.kind}: the disk is fenced", disk=disk, me=leader._replace(at="fenced"))


@rule("me other disk jobs", leaders=True, progress=4, at="fenced")
def provision(
    me: str, leader: Leader, other: Leader | None, disk: Disk, jobs: tuple[Job, ...]
) -> Iterator[Step]:
    """Take the lock once more: no earlier leader can have started a container meanwhile."""
    effect = leader.act
    assert effect is not None
    if effect.kind != "provision":
        return
    if lock_is_held(other, jobs) or disk_refuses(leader.epoch, disk):
        yield step(f"{me}: provision waits, or is rejected", me=after_reconcile(me, leader))
        return
    yield from _provision(me, leader, effect, disk._replace(fence=leader.epoch))


def _provision(me: str, leader: Leader, effect: Act, disk: Disk) -> Iterator[Step]:
    there = volume_fact(disk)
    if there is not None and there[0] is not None:
        if there[0] == effect.home:
            yield step(f"{me}: the empty home already exists", disk=disk, me=after_reconcile(me, leader))
        else:
            raised = failed(me, leader, ErrorReason.ActionFailed)
            yield step(f"{me}: another home exists", disk=disk, me=raised)
        return
    asides = disk.asides if disk.home is None else (*disk.asides, disk.home)
    made = disk._replace(home=b"", marker=effect.home, asides=asides)
    yield step(f"{me}: makes an empty home", disk=made, me=after_reconcile(me, leader))
    raised = failed(me, leader, ErrorReason.ActionFailed)
    yield step(f"{me}: makes an empty home, and reports a failure", "fault", disk=made, me=raised)
    half = made._replace(home=None)
    label = f"{me}: dies between the marker and its empty home"
    yield step(label, "crash" if me == "lead" else None, disk=half, me=dying(me, leader))


def _set_aside(me: str, leader: Leader, effect: Act, disk: Disk) -> Iterator[Step]:
    if disk.home is None:
        yield step(f"{me}: there is no home to set aside", disk=disk, me=after_reconcile(me, leader))
    elif disk.marker != effect.home:
        yield step(f"{me}: another home exists", disk=disk, me=failed(me, leader, ErrorReason.ActionFailed))
    else:
        moved = disk._replace(home=None, asides=(*disk.asides, disk.home))
        yield step(
            f"{me}: sets the home aside", disk=moved._replace(marker=None), me=after_reconcile(me, leader)
        )
        label = f"{me}: dies after it set the home aside, before it removed the marker"
        yield step(label, "crash" if me == "lead" else None, disk=moved, me=dying(me, leader))


def _hold(me: str, leader: Leader, effect: Act, disk: Disk) -> Iterator[Step]:
    yield step(
        f"{me}: start: cannot observe the home", "unseen", disk=disk,
        me=failed(me, leader, ErrorReason.Unreachable),
    )  # fmt: skip
    if is_meant(disk, effect.home):
        yield step(f"{me}: start: holds the home", disk=disk, me=leader._replace(at="held"))
    else:
        yield step(f"{me}: start: another home exists", disk=disk, me=after_reconcile(me, leader))


def is_meant(disk: Disk, home: Generation | None) -> bool:
    """`effect_executor._check_generation`."""
    return disk.home is not None and disk.marker == home


def _require_no_container(
    me: str, leader: Leader, effect: Act, disk: Disk, container: Container | None
) -> Iterator[Step]:
    yield step(
        f"{me}: {effect.kind}: cannot observe the container", "unseen", disk=disk,
        me=failed(me, leader, ErrorReason.Unreachable),
    )  # fmt: skip
    if effect.kind in NAMES_A_GENERATION and not is_meant(disk, effect.home):
        yield step(f"{me}: {effect.kind}: another home exists", disk=disk, me=after_reconcile(me, leader))
    elif controller.container_fact(container) is not None:
        yield step(f"{me}: {effect.kind}: a container exists", disk=disk, me=after_reconcile(me, leader))
    else:
        label = f"{me}: {effect.kind}: no container exists"
        yield step(label, disk=disk, me=leader._replace(at="fenced"))


@rule("me disk container", leaders=True, progress=4, at="held")
def start(me: str, leader: Leader, disk: Disk, container: Container | None) -> Iterator[Step]:
    """`runtime.start`, under the lock.

    It fails without a home, and leaves a running container alone.
    """
    yield step(f"{me}: the start fails", "fault", me=failed(me, leader, ErrorReason.ActionFailed))
    if disk.home is None:
        yield step(f"{me}: no home to start on", me=failed(me, leader, ErrorReason.ContainerWithoutVolume))
        return
    effect = leader.act
    assert effect is not None and effect.op is not None
    if container is not None and container.state != "exited":
        yield step(f"{me}: the container runs already", me=after_reconcile(me, leader))
        return
    made = Container(effect.op, effect.attempt, effect.home, "starting")
    yield step(f"{me}: starts the container", container=made, me=after_reconcile(me, leader))
    raised = failed(me, leader, ErrorReason.ActionFailed)
    label = f"{me}: starts the container, and reports a failure"
    yield step(label, "fault", container=made, me=raised)


@rule("me jobs", leaders=True, progress=4, at="fenced")
def start_job(me: str, leader: Leader, jobs: tuple[Job, ...]) -> Iterator[Step]:
    """`jobs.start`: start a new job or one that was killed, but none that runs or has ended."""
    assert leader.act is not None
    if leader.act.kind not in JOBS:
        return
    effect, starter = leader.act, 1 if me == "lead" else 2
    new = Job(effect.op, effect.attempt, effect.kind, effect.home, effect.arc, leader.epoch, starters=starter)
    found = next((job for job in jobs if job.name == new.name), None)
    yield step(f"{me}: the job cannot be started", "fault", me=failed(me, leader, ErrorReason.ActionFailed))
    if found is None or found.state == "gone":
        kept = new if found is None else new._replace(starters=found.starters | starter)
    else:
        kept = found
    others = [job for job in jobs if job.name != new.name]
    label = f"{me}: starts the job {effect.kind}"
    yield step(label, jobs=tuple(sorted((*others, kept), key=job_order)), me=after_reconcile(me, leader))


def job_order(job: Job) -> tuple[int, int, str]:
    return job.name
