"""Prometheus metrics of a coordinator. No label identifies a person or a workspace."""

from collections.abc import Mapping
from datetime import datetime

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from codehub.coordinator.work_queue import WorkQueue
from codehub.domain.decision import Decision, TimelineEvent
from codehub.domain.health_checks import CheckName, CheckResult
from codehub.domain.observation import JobFact, JobState, Observation
from codehub.domain.states import DesiredState, Operation
from codehub.domain.workspace import Workspace

OUTCOMES = (TimelineEvent.FINISHED, TimelineEvent.FAILED, TimelineEvent.ERROR, TimelineEvent.CANCELLED)
"""Events that end an operation, or one attempt at it."""
SECONDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)
_JOBS = {
    Operation.ARCHIVING: "archive",
    Operation.CREATE_EMPTY_ARCHIVE: "empty-archive",
    Operation.RESTORING: "restore",
}


class CoordinatorMetrics:
    """Registry of one coordinator process, for all its terms as leader."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self._queue: WorkQueue | None = None
        ProcessCollector(registry=registry)
        self._leader = Gauge(
            "codehub_coordinator_leader", "1 while this coordinator leads.", registry=registry
        )
        self._epoch = Gauge("codehub_coordinator_epoch", "Epoch of the latest term.", registry=registry)
        waiting = Gauge(
            "codehub_coordinator_queue_depth", "Workspaces that wait for a worker.", registry=registry
        )
        waiting.set_function(lambda: self._queue.waiting()[0] if self._queue else 0)
        age = Gauge(
            "codehub_coordinator_queue_oldest_seconds",
            "How long the first of them has waited.",
            registry=registry,
        )
        age.set_function(lambda: self._queue.waiting()[1] if self._queue else 0)
        self._operations = Counter(
            "codehub_coordinator_operations",
            "Operations that ended, and attempts that failed.",
            ["operation", "outcome"],
            registry=registry,
        )
        self._seconds = Histogram(
            "codehub_coordinator_operation_seconds",
            "Time from the claim of an operation to its outcome.",
            ["operation", "outcome"],
            buckets=SECONDS,
            registry=registry,
        )
        self.cas_losses = Counter(
            "codehub_coordinator_cas_losses",
            "Decisions dropped because the workspace had changed meanwhile.",
            registry=registry,
        )
        self._failed_ticks = Counter(
            "codehub_coordinator_failed_ticks", "Ticks that failed.", ["component"], registry=registry
        )
        self._ttl = Counter(
            "codehub_ttl_expirations",
            "Workspaces that a TTL stopped or archived.",
            ["desired_state"],
            registry=registry,
        )
        self.gc_freed_bytes = Counter(
            "codehub_gc_freed_bytes", "Bytes of archives removed.", registry=registry
        )
        self.gc_alarms = Counter("codehub_gc_alarms", "Alarms raised by GC cycles.", registry=registry)
        self._checks = Gauge(
            "codehub_health_check", "1 while a check of the leader is good.", ["check"], registry=registry
        )
        self._jobs = Counter(
            "codehub_storage_jobs", "Storage jobs that ended.", ["kind", "outcome"], registry=registry
        )
        self._job_bytes = Counter(
            "codehub_storage_job_bytes", "Bytes that storage jobs moved.", ["kind"], registry=registry
        )
        self._job_seconds = Counter(
            "codehub_storage_job_seconds", "Time that storage jobs took.", ["kind"], registry=registry
        )

    def exposition(self) -> tuple[bytes, str]:
        return generate_latest(self._registry), CONTENT_TYPE_LATEST

    def begin_term(self, epoch: int, queue: WorkQueue) -> None:
        self._leader.set(1)
        self._epoch.set(epoch)
        self._queue = queue

    def end_term(self) -> None:
        """Clear what only a leader reports: its last check results would never change again."""
        self._leader.set(0)
        self._queue = None
        self._checks.clear()

    def count_decision(
        self, before: Workspace, decision: Decision, observation: Observation, now: datetime
    ) -> None:
        """Count an operation's outcome, and the storage jobs that led to it."""
        if decision.event not in OUTCOMES:
            return
        labels = (before.operation.value, decision.event.value)
        self._operations.labels(*labels).inc()
        if before.op_started_at is not None:
            self._seconds.labels(*labels).observe((now - before.op_started_at).total_seconds())
        if before.operation in _JOBS:
            self._count_job(_JOBS[before.operation], observation.job)
            self._count_job("delete", observation.deletion)

    def count_tick_failure(self, component: str) -> None:
        self._failed_ticks.labels(component).inc()

    def count_expiration(self, desired: DesiredState) -> None:
        self._ttl.labels(desired.value).inc()

    def show_checks(self, found: Mapping[CheckName, CheckResult]) -> None:
        for name, verdict in found.items():
            self._checks.labels(name.value).set(verdict.ok)

    def _count_job(self, kind: str, job: JobFact | None) -> None:
        if job is None or job.state is JobState.RUNNING:
            return
        self._jobs.labels(kind, job.state.value.lower()).inc()
        self._job_bytes.labels(kind).inc(job.bytes)
        self._job_seconds.labels(kind).inc(job.seconds)
