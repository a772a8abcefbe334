"""One history: fifty workspaces and two coordinators with seeded requests and faults (ADR 0008).

After the faults end, every workspace must settle in its desired state, with its content.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from codehub.coordinator.clock_and_ids import ClockAndIds
from codehub.coordinator.leadership_loop import run_elections
from codehub.domain.gateway_reports import ActivitySnapshot
from codehub.domain.problems import Problem, ValidationFailed
from codehub.domain.states import DesiredState, ErrorReason, Operation, Phase
from codehub.domain.workspace import RecoverSource, Workspace
from codehub.settings import Settings, load
from tests.simulation.clock import VirtualLoop
from tests.simulation.database import FLUSH_EVERY, LIMITS, STANDBY_TTL, Database, Gate
from tests.simulation.gateway import Gateway
from tests.simulation.jobs import Jobs
from tests.simulation.process import Faults, Process
from tests.simulation.providers import providers_of
from tests.simulation.redis import Redis
from tests.simulation.simulated_backend import STARTING_TIMEOUT, SimulatedBackend
from tests.simulation.world import Home, Violation, World

WORKSPACES = 50
COORDINATORS = 2
GATEWAYS = 2
PURGED_WITHIN = timedelta(seconds=900)
"""Time from the end of a deleted workspace's retention: several cycles of GC."""
LOST_AFTER = 150
"""Seconds after which a silent gateway counts as lost."""
SAVE_EVERY = 20
"""Seconds between two snapshots of Redis."""
FAULT_SECONDS = 80.0
"""Virtual seconds with faults."""
SETTLE_WITHIN = 7200.0
"""Virtual seconds after the faults in which everything must settle."""
ARCHIVES_KEPT = 1
FAULT_RATE = 0.01
DESIRED_STATES = (DesiredState.RUNNING, DesiredState.RUNNING, DesiredState.STANDBY, DesiredState.ARCHIVED)
COMPONENTS = ("store", "volumes", "runtime", "database", "redis", "flush", "space", "jobs")


def settings() -> Settings:
    return load(
        database_url="postgresql://simulated",
        redis_url="redis://simulated",
        coordinator_active_duration=2,
        coordinator_ttl_interval=15,
        coordinator_gc_interval=120,
        activity_flush_interval=FLUSH_EVERY,
        gateway_lost_after_seconds=LOST_AFTER,
        ttl_standby_seconds=STANDBY_TTL,
        ttl_archive_seconds=120,
        trash_retention_seconds=300,
        archives_kept=ARCHIVES_KEPT,
        gc_orphan_grace_seconds=150,
        reconciler_retry_backoff=5,
        reconciler_archiving_timeout=150,
        reconciler_restoring_timeout=150,
        reconciler_starting_timeout=STARTING_TIMEOUT,
        reconciler_provisioning_timeout=60,
        reconciler_stopping_timeout=60,
        reconciler_create_empty_archive_timeout=150,
        reconciler_deleting_timeout=60,
        disk_reserve_bytes=1,
    )


@dataclass(frozen=True)
class Outcome:
    steps: int
    events: list[str]


class Coordinator:
    """A coordinator process and its task."""

    def __init__(self, history: "History", name: str) -> None:
        self.process = Process(name, history.world, history.fork(name), history.faults)
        backend = history.backend(self.process, history.database, history.redis, history.retention)
        clock_and_ids = ClockAndIds(history.loop.utc_now, history.new_id, self.process.chance.random)
        self.stop = asyncio.Event()
        self.task = asyncio.create_task(
            run_elections(
                history.settings,
                providers_of(self.process, history.jobs),
                backend,
                stop=self.stop,
                clock_and_ids=clock_and_ids,
            ),
            name=name,
        )


class History:
    """A run of the control plane.

    Planted bugs replace `backend`, `gateway` and functions of the product.
    """

    backend = SimulatedBackend
    gateway = Gateway
    fault_seconds = FAULT_SECONDS

    def __init__(self, seed: int, loop: VirtualLoop) -> None:
        self.seed = seed
        self.loop = loop
        self.settings = settings()
        self.retention = timedelta(seconds=self.settings.trash_retention_seconds)
        self.faults = Faults(FAULT_RATE)
        self.world = World(loop, timedelta(seconds=self.settings.gc_orphan_grace_seconds))
        self.database = Database(self.world, self.retention, self.settings.archives_kept)
        self.gate = Gate(self.database)
        self.redis = Redis()
        self.gateways: list[Gateway] = []
        self.jobs = Jobs(self.world, self.fork("jobs"), self.faults)
        self.chance = self.fork("history")
        self.coordinators: list[Coordinator] = []
        self._ids = 0
        self._started = 0
        self._writes = 0

    def fork(self, name: str) -> random.Random:
        """Return a random stream for one part, so that its draws do not change the others."""
        return random.Random(f"{self.seed} {name}")

    def new_id(self) -> str:
        self._ids += 1
        return f"{self._ids:08}"

    async def run(self) -> Outcome:
        for number in range(WORKSPACES):
            desired = (
                self.chance.choice(DESIRED_STATES) if number < LIMITS.everyone else DesiredState.ARCHIVED
            )
            self.database.create(f"ws{number:03}", number, desired)
        for _ in range(COORDINATORS):
            self._start_coordinator()
        for _ in range(GATEWAYS):
            self._start_gateway()
        saving = asyncio.create_task(self._save_redis())
        try:
            await self._inject_faults()
            self._end_faults()
            await self._wait_until_settled()
        finally:
            saving.cancel()
            for coordinator in self.coordinators:
                coordinator.process.kill()
                coordinator.task.cancel()
            tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return Outcome(self.world.steps, self.world.events)

    def _start_coordinator(self) -> None:
        self._started += 1
        self.coordinators.append(Coordinator(self, f"coordinator-{self._started}"))

    def _start_gateway(self) -> None:
        name = f"gateway-{len(self.gateways) + 1}"
        process = Process(name, self.world, self.fork(name), self.faults)
        self.gateways.append(self.gateway(process, self.database, self.redis, FLUSH_EVERY))

    def open_gateways(self) -> list[Gateway]:
        return [gateway for gateway in self.gateways if gateway.is_open]

    async def _save_redis(self) -> None:
        while True:
            await asyncio.sleep(SAVE_EVERY)
            self.redis.save()

    def handle_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        """Record the failure of a task that nobody awaits. Only a kill may end such a task."""
        error = context.get("exception")
        if isinstance(error, Exception):
            self.world.violation = self.world.violation or Violation(f"a task failed: {error!r}")

    def running_coordinators(self) -> list[Coordinator]:
        return [coordinator for coordinator in self.coordinators if coordinator.process.alive]

    async def _inject_faults(self) -> None:
        end = self.loop.time() + self.fault_seconds
        while self.loop.time() < end:
            await asyncio.sleep(self.chance.expovariate(1.5))
            self._check_coordinators()
            if self.chance.random() < 0.85:
                self._act_as_user()
            else:
                self._disturb()

    def _check_coordinators(self) -> None:
        if self.world.violation is not None:
            raise self.world.violation
        for coordinator in self.coordinators:
            if coordinator.task.done() and coordinator.process.alive:
                coordinator.task.result()
                raise AssertionError("a coordinator ended without being stopped")

    def _act_as_user(self) -> None:
        """Make a random request, which may be rejected."""
        name = self.chance.choice(list(self.database.rows))
        draw = self.chance.random()
        try:
            if draw < 0.5:
                self._write_home(name)
            elif draw < 0.85:
                self.gate.set_desired_state(name, self.chance.choice(DESIRED_STATES))
            elif draw < 0.875:
                self.gate.delete(name)
            elif draw < 0.88:
                self.gate.delete_now(name)
            elif draw < 0.92:
                self.gate.undelete(name)
            elif draw < 0.96:
                self.gate.cancel(name)
            elif draw < 0.985:
                self._recover(name)
            else:
                self._restore(name)
        except Problem as problem:
            self.world.record(name, f"is rejected: {problem.code}")

    def _write_home(self, name: str) -> None:
        self._writes += 1
        gateways = self.open_gateways()
        if gateways and self.world.write(name, f"{self._writes:06}".encode()):
            self.chance.choice(gateways).recorder.record_use(name)

    def _recover(self, name: str) -> None:
        """Recover as an owner, with a choice if one is required or nothing else has helped."""
        broken = self.database.rows[name].error_reason in (
            ErrorReason.ArchiveCorrupted,
            ErrorReason.RetryExceeded,
        )
        if not broken or self.chance.random() < 0.5:
            try:
                self.gate.recover(name, None, None)
                return
            except ValidationFailed:
                pass
        known = self._known_archives(name)
        if known and self.chance.random() < 0.6:
            self.gate.recover(name, RecoverSource.ARCHIVE, self.chance.choice(known))
        else:
            self.gate.recover(name, RecoverSource.EMPTY, None)

    def _restore(self, name: str) -> None:
        known = self._known_archives(name)
        if known:
            self.gate.restore(name, self.chance.choice(known))

    def _known_archives(self, name: str) -> list[str]:
        return [
            item.fact.archive_op_id
            for item in self.database.archives.values()
            if item.fact.workspace_id == name and not item.removed
        ]

    def _disturb(self) -> None:
        disturbances: tuple[Callable[[], None], ...] = (
            self._kill_coordinator, self._kill_coordinator, self._pause_coordinator,
            self._pause_coordinator, self._restart_database, self._break_component, self._break_component,
            self._kill_job, self._kill_job, self._end_container, self._hang_container, self._remove_home,
            self._damage_archive, self._create_unmarked_home, self._lose_redis, self._replace_gateway,
            self._close_all_gateways,
        )  # fmt: skip
        self.chance.choice(disturbances)()

    def _kill_coordinator(self) -> None:
        if not self.running_coordinators():
            return
        coordinator = self.chance.choice(self.running_coordinators())
        self.world.record("---", f"{coordinator.process.name} is killed")
        self._stop_coordinator(coordinator)
        self.loop.call_later(self.chance.uniform(0.1, 20), self._start_coordinator)

    def _stop_coordinator(self, coordinator: Coordinator) -> None:
        coordinator.process.kill()
        coordinator.task.cancel()
        session = self.database.leadership.session
        if session is not None and session.process is coordinator.process:
            self.database.leadership.session = None

    def _pause_coordinator(self) -> None:
        coordinator = self.chance.choice(self.running_coordinators() or [None])  # type: ignore[list-item]
        if coordinator is None or not coordinator.process.resumed.is_set():
            return
        self.world.record("---", f"{coordinator.process.name} is paused")
        coordinator.process.resumed.clear()
        self.loop.call_later(self.chance.uniform(1, 90), coordinator.process.resumed.set)

    def _restart_database(self) -> None:
        self.world.record("---", "the database restarts")
        self.database.leadership.session = None
        self.world.down["database"] = self.loop.time() + self.chance.uniform(0.1, 8)

    def _break_component(self) -> None:
        component = self.chance.choice(COMPONENTS)
        self.world.record("---", f"{component} is down")
        self.world.down[component] = self.loop.time() + self.chance.expovariate(1 / 20)

    def _kill_job(self) -> None:
        running = self.jobs.running()
        if running:
            self.jobs.kill(self.chance.choice(running))

    def _end_container(self) -> None:
        name = self._choose_or_none(list(self.world.containers))
        if name is None:
            return
        if self.chance.random() < 0.5:
            self.world.containers[name].running = False
        else:
            del self.world.containers[name]

    def _hang_container(self) -> None:
        name = self._choose_or_none(list(self.world.containers))
        if name is not None:
            container, now = self.world.containers[name], self.loop.time()
            until = now + self.chance.uniform(5, 120)
            if container.was_ready_for_long(now):
                container.silent_from = now
            container.silent_until = until

    def _remove_home(self) -> None:
        name = self._choose_or_none(
            [name for name, disk in self.world.disks.items() if disk.home is not None]
        )
        if name is None or self.chance.random() < 0.5:
            return
        disk = self.world.disk(name)
        self.world.record(name, "someone removes the home")
        self.world.record_outside_damage(name)
        assert disk.home is not None
        disk.home.removed_by_others, disk.home = True, None
        self.world.changed(name)

    def _damage_archive(self) -> None:
        key = self._choose_or_none(list(self.world.store))
        if key is None or self.chance.random() < 0.5:
            return
        name = key.split("/")[0]
        self.world.record_outside_damage(name)
        if self.chance.random() < 0.5:
            self.world.record(name, f"someone removes the archive {key}")
            del self.world.store[key]
        else:
            self.world.record(name, f"bits flip in the archive {key}")
            self.world.store[key].content = b"rotten"
        self.world.changed(name)

    def _create_unmarked_home(self) -> None:
        """Create a home without a marker, as a failing disk might leave it."""
        name = self._choose_or_none(list(self.database.rows))
        disk = self.world.disk(name or "")
        if name is not None and disk.home is None:
            disk.home, disk.marker = Home(b"half"), None

    def _lose_redis(self) -> None:
        """Restart Redis empty or with an older snapshot."""
        self.world.record("---", "Redis loses data")
        self.redis.lose(self.redis.saved if self.chance.random() < 0.5 else ActivitySnapshot({}, {}))

    def _replace_gateway(self) -> None:
        gateways = self.open_gateways()
        if gateways:
            self._close_gateway(self.chance.choice(gateways))
        self._start_gateway()

    def _close_gateway(self, gateway: Gateway) -> None:
        if self.chance.random() < 0.5:
            self.world.record("---", f"{gateway.name} is stopped")
            gateway.end()
        else:
            self.world.record("---", f"{gateway.name} is killed")
            gateway.kill()

    def _close_all_gateways(self) -> None:
        """Close all gateways for a while, so that nobody can reach a workspace."""
        for gateway in self.open_gateways():
            self._close_gateway(gateway)
        for _ in range(GATEWAYS):
            self.loop.call_later(self.chance.uniform(1, 250), self._start_gateway)

    def _choose_or_none(self, names: list[str]) -> str | None:
        return self.chance.choice(names) if names else None

    def _end_faults(self) -> None:
        """End all faults. From here on nothing fails."""
        self.world.record("---", "the faults end")
        self.faults.rate = 0.0
        self.world.down.clear()
        for coordinator in self.running_coordinators():
            coordinator.process.resumed.set()
        for container in self.world.containers.values():
            container.silent_until = 0.0
        while len(self.running_coordinators()) < COORDINATORS:
            self._start_coordinator()

    async def _wait_until_settled(self) -> None:
        end = self.loop.time() + SETTLE_WITHIN
        while self.loop.time() < end:
            await asyncio.sleep(30)
            self._check_coordinators()
            waiting = [row for row in self.database.rows.values() if not self._is_settled(row)]
            if not waiting:
                return
            for row in waiting:
                if row.phase is Phase.ERROR and row.request is None:
                    self._recover_after_faults(row.id)
        row = waiting[0]
        self.world.fail(row.id, f"does not settle: {row.phase} {row.operation} {row.desired_state}")

    def _recover_after_faults(self, name: str) -> None:
        try:
            self._recover(name)
        except Problem as problem:
            self.world.record(name, f"is rejected: {problem}")

    def _is_settled(self, row: Workspace) -> bool:
        """Return whether the workspace is in its desired state, with its owner's content."""
        if row.purged_at is not None:
            return True
        if (
            row.deleted_at is not None
            and self.loop.utc_now() > row.deleted_at + self.retention + PURGED_WITHIN
        ):
            return False
        if row.operation is not Operation.NONE or row.request is not None or row.phase is Phase.ERROR:
            return False
        if row.phase.value != row.desired_state.value:
            return False
        return self._has_expected_home(row)

    def _has_expected_home(self, row: Workspace) -> bool:
        expected, disk = self.world.expected_homes[row.id], self.world.disk(row.id)
        if row.phase in (Phase.RUNNING, Phase.STANDBY):
            return disk.home is not None and disk.home.content == expected.content
        if row.phase is Phase.ARCHIVED:
            item = self.world.store.get(row.archive_key or "")
            there = disk.home is not None and disk.marker is not None
            return item is not None and (item.content == expected.content or expected.damaged) and not there
        return True


def run(seed: int, history: type[History] = History) -> Outcome:
    """Run one history; raise Violation, with its events, if a contract is broken."""
    loop = VirtualLoop()
    asyncio.set_event_loop(loop)
    simulation = history(seed, loop)
    loop.set_exception_handler(simulation.handle_exception)
    try:
        outcome = loop.run_until_complete(simulation.run())
    except Violation as violation:
        report = Violation(f"seed {seed}: {violation}\nTo repeat it: python -m tests.simulation {seed}")
        report.events = tuple(simulation.world.events)
        raise report from violation
    finally:
        asyncio.set_event_loop(None)
        loop.close()
    return outcome
