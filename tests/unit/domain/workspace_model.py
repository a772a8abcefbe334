"""Model of one workspace with its container, home, archives and jobs, and a controller to step."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from codehub.domain.archive_keys import archive_op_id_of
from codehub.domain.attempt_jobs import current_deletion_job_id, current_job_id
from codehub.domain.conditions import initial_conditions
from codehub.domain.decision import DEFAULT_RULES, Context, Decision
from codehub.domain.effects import (
    ArchiveEmpty,
    ArchiveHome,
    CancelJob,
    DeleteContainer,
    DeleteVolume,
    Effect,
    Provision,
    RestoreHome,
    SetHomeAside,
    StartContainer,
)
from codehub.domain.observation import (
    SKIPPED,
    ArchiveFact,
    ContainerFact,
    Generation,
    JobFact,
    JobState,
    Observation,
    Skipped,
    VolumeFact,
)
from codehub.domain.plan import must_observe_archive, plan
from codehub.domain.restore_request import must_observe_chosen
from codehub.domain.states import DesiredState, Operation
from codehub.domain.workspace import PendingRequest, Workspace
from tests.unit.domain.builders import NOW, archive, workspace

TICK = timedelta(seconds=2)
PATIENCE = 120
"""Ticks within which the workspace must become idle, back-off included."""


@dataclass
class Home:
    generation: Generation
    version: int


@dataclass
class Container:
    attempt: str
    ready: bool = False


@dataclass
class Job:
    """`version`: version of the home when the job began, which its archive contains."""

    effect: Effect
    version: int
    state: JobState = JobState.RUNNING
    ticks_left: int = 2


@dataclass
class World:
    """Real state of the resources. `written`: newest version of the home that its user has made."""

    home: Home | None = None
    container: Container | None = None
    archives: dict[str, int] = field(default_factory=dict)
    jobs: dict[str, Job] = field(default_factory=dict)
    written: int | None = None
    aside: list[Home] = field(default_factory=list)

    def has_complete_copy(self) -> bool:
        copies = [*self.archives.values(), *([self.home.version] if self.home else [])]
        return self.written is None or self.written in copies

    def tick(self) -> None:
        if self.container is not None and self.container.ready and self.home is not None:
            self.written = self.home.version = (self.written or 0) + 1
        elif self.container is not None:
            self.container.ready = True
        for job in self.jobs.values():
            if job.state is JobState.RUNNING:
                job.ticks_left -= 1
                if job.ticks_left == 0:
                    job.state = JobState.SUCCEEDED if self._carried_out(job) else JobState.FAILED

    def apply(self, effect: Effect) -> None:
        match effect:
            case Provision():
                if self.home is None:
                    self.home = Home(effect.generation, 0)
                    self.written = 0
            case StartContainer():
                if not self.is_locked() and self._is_home(effect.generation) and self.container is None:
                    self.container = Container(effect.attempt)
            case DeleteContainer():
                self.container = None
            case SetHomeAside():
                if self.home is not None and self._is_home(effect.generation) and not self.is_locked():
                    self.aside.append(self.home)
                    self.home = None
            case CancelJob():
                self.kill(effect.job_id)
            case ArchiveHome() | DeleteVolume() if self.container is not None:
                return
            case _:
                job = self.jobs.get(effect.job_id)
                if job is None or job.state is JobState.GONE:
                    self.jobs[effect.job_id] = Job(effect, self.home.version if self.home else 0)

    def is_locked(self) -> bool:
        """Return whether a job runs. A job holds the workspace's lock while it runs."""
        return any(job.state is JobState.RUNNING for job in self.jobs.values())

    def kill(self, job_id: str) -> None:
        if job_id in self.jobs and self.jobs[job_id].state is JobState.RUNNING:
            self.jobs[job_id].state = JobState.GONE

    def kill_all(self) -> None:
        for job_id in self.jobs:
            self.kill(job_id)

    def _is_home(self, generation: Generation) -> bool:
        return self.home is not None and self.home.generation == generation

    def _carried_out(self, job: Job) -> bool:
        effect = job.effect
        match effect:
            case ArchiveEmpty():
                self.archives.setdefault(effect.archive_op_id, 0)
                self.written = self.written or 0
                return True
            case ArchiveHome():
                if not self._is_home(effect.generation):
                    return False
                self.archives.setdefault(effect.archive_op_id, job.version)
                return True
            case RestoreHome():
                stored = self.archives.get(archive_op_id_of(effect.archive_key))
                if stored is None or self.home is not None:
                    return False
                self.home = Home(Generation(effect.op_id, effect.archive_key), stored)
                return True
            case DeleteVolume():
                if self.home is not None and not self._is_home(effect.generation):
                    return False
                self.home = None
                return True
            case _:
                raise AssertionError(f"no job does {effect}")


@dataclass
class SteppedController:
    """Controller of the workspace, run step by step."""

    world: World = field(default_factory=World)
    workspace: Workspace = field(
        default_factory=lambda: workspace(
            desired_state=DesiredState.PENDING, conditions=initial_conditions(NOW), observed_at=None
        )
    )
    now: datetime = NOW
    operations: list[Operation] = field(default_factory=list)
    sentences: list[str] = field(default_factory=list)
    distort: Callable[[Observation], Observation] | None = None
    drop_effect: bool = False
    restarted: bool = False
    _ids: int = 0

    def set_desired_state(self, desired: DesiredState) -> None:
        deleted_at = self.now if desired is DesiredState.DELETED else None
        self.workspace = replace(self.workspace, desired_state=desired, deleted_at=deleted_at)

    def request(self, request: PendingRequest) -> None:
        self.workspace = replace(self.workspace, request=request)

    def step(self) -> Decision:
        """Observe, decide, save, and apply the effect."""
        self.now += TICK
        self.world.tick()
        shown = self.observe()
        shown = shown if self.distort is None else self.distort(shown)
        decision = plan(self.workspace, shown, self._context())
        if decision.after.operation not in (Operation.NONE, self.workspace.operation):
            self.operations.append(decision.after.operation)
        self.sentences.append(decision.sentence)
        self._save(decision)
        if decision.effect is not None and not self.drop_effect:
            self.world.apply(decision.effect)
        self.distort, self.drop_effect, self.restarted = None, False, False
        return decision

    def run_until_idle(self, watch: Callable[[], None] = lambda: None) -> None:
        """Run steps until nothing changes, and call `watch` after each."""
        for _ in range(PATIENCE):
            before = self.workspace
            decision = self.step()
            watch()
            waits = self.workspace.operation is not Operation.NONE or self.workspace.next_retry_at is not None
            if self.workspace == before and decision.effect is None and not waits:
                return
        raise AssertionError("It does not become idle:\n" + "\n".join(self.sentences[-20:]))

    def observe(self) -> Observation:
        home, container = self.world.home, self.world.container
        return Observation(
            at=self.now,
            container=None
            if container is None
            else ContainerFact(True, True, container.ready, "unix:/ide.sock", container.attempt),
            volume=None if home is None else VolumeFact(home.generation),
            archive=self._archive(),
            chosen=self._chosen(),
            job=self._job(current_job_id(self.workspace)),
            deletion=self._job(current_deletion_job_id(self.workspace)),
            is_first=self.restarted,
            job_is_ours=not self.restarted,
        )

    def _archive(self) -> ArchiveFact | Skipped | None:
        item = self.workspace
        if not must_observe_archive(item):
            return SKIPPED
        op_id = (
            item.archive_op_id if item.operation.makes_archive else archive_op_id_of(item.archive_key or "")
        )
        return archive(op_id) if op_id in self.world.archives else None

    def _chosen(self) -> ArchiveFact | Skipped | None:
        op_id = self.workspace.archive_to_restore
        if op_id is None or not must_observe_chosen(self.workspace):
            return SKIPPED
        return archive(op_id) if op_id in self.world.archives else None

    def _job(self, job_id: str) -> JobFact | None:
        job = self.world.jobs.get(job_id)
        return None if job is None else JobFact(job.state, None, None, "")

    def _save(self, decision: Decision) -> None:
        after = decision.after
        if decision.consume:
            after = replace(after, request=None)
        if decision.desired is not None:
            after = replace(after, desired_state=decision.desired)
        self.workspace = after

    def _context(self) -> Context:
        self._ids += 1
        return Context(self.now, DEFAULT_RULES, f"op{self._ids:04}", f"ar{self._ids:04}", jitter=0.5)
