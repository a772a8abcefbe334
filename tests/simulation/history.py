"""One history: fifty workspaces, two coordinators, seeded wishes and faults, then peace: all must be well."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from codehub.coordinator.clock_and_ids import ClockAndIds
from codehub.coordinator.leadership_loop import serve
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
from tests.simulation.reality import Home, Reality, Violation
from tests.simulation.redis import Redis
from tests.simulation.simulated_backend import STARTING_TIMEOUT, SimulatedBackend

WORKSPACES = 50
COORDINATORS = 2
GATEWAYS = 2
PURGED_WITHIN = timedelta(seconds=900)
"""After the retention of a deleted workspace: several cycles of GC."""
LOST_AFTER = 150
"""Seconds after which a gateway that is not heard is not waited for."""
SAVE_EVERY = 20
"""Seconds between two snapshots of Redis."""
TROUBLED = 80.0
"""Virtual seconds with faults."""
PATIENCE = 7200.0
"""Virtual seconds of peace in which everything must have come to rest."""
FAULT_RATE = 0.01
WISHES = (DesiredState.RUNNING, DesiredState.RUNNING, DesiredState.STANDBY, DesiredState.ARCHIVED)
PARTS = ("store", "volumes", "runtime", "database", "redis", "flush", "space", "jobs")


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
    story: list[str]


class Member:
    """A coordinator process and the task that it is."""

    def __init__(self, history: "History", name: str) -> None:
        self.process = Process(name, history.reality, history.fork(name), history.faults)
        backend = history.backend(self.process, history.database, history.redis, history.retention)
        clock_and_ids = ClockAndIds(history.loop.moment, history.new_id, self.process.chance.random)
        self.stop = asyncio.Event()
        self.task = asyncio.create_task(
            serve(
                history.settings,
                providers_of(self.process, history.jobs),
                backend,
                stop=self.stop,
                clock_and_ids=clock_and_ids,
            ),
            name=name,
        )


class History:
    """`backend`, `gateway` and the functions of the product are what a planted bug replaces."""

    backend = SimulatedBackend
    gateway = Gateway
    troubled = TROUBLED

    def __init__(self, seed: int, loop: VirtualLoop) -> None:
        self.seed = seed
        self.loop = loop
        self.settings = settings()
        self.retention = timedelta(seconds=self.settings.trash_retention_seconds)
        self.faults = Faults(FAULT_RATE)
        self.reality = Reality(loop, timedelta(seconds=self.settings.gc_orphan_grace_seconds))
        self.database = Database(self.reality, self.retention)
        self.gate = Gate(self.database)
        self.redis = Redis()
        self.gateways: list[Gateway] = []
        self.jobs = Jobs(self.reality, self.fork("jobs"), self.faults)
        self.chance = self.fork("history")
        self.members: list[Member] = []
        self._ids = 0
        self._born = 0
        self._wrote = 0

    def fork(self, name: str) -> random.Random:
        """A stream of chance of its own, so that what one part draws does not change the others."""
        return random.Random(f"{self.seed} {name}")

    def new_id(self) -> str:
        self._ids += 1
        return f"{self._ids:08}"

    async def run(self) -> Outcome:
        for number in range(WORKSPACES):
            desired = self.chance.choice(WISHES) if number < LIMITS.everyone else DesiredState.ARCHIVED
            self.database.create(f"ws{number:03}", number, desired)
        for _ in range(COORDINATORS):
            self._start_coordinator()
        for _ in range(GATEWAYS):
            self._start_gateway()
        saving = asyncio.create_task(self._save_redis())
        try:
            await self._troubles()
            self._heal()
            await self._peace()
        finally:
            saving.cancel()
            for member in self.members:
                member.process.kill()
                member.task.cancel()
            tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return Outcome(self.reality.steps, self.reality.story)

    def _start_coordinator(self) -> None:
        self._born += 1
        self.members.append(Member(self, f"coordinator-{self._born}"))

    def _start_gateway(self) -> None:
        name = f"gateway-{len(self.gateways) + 1}"
        process = Process(name, self.reality, self.fork(name), self.faults)
        self.gateways.append(self.gateway(process, self.database, self.redis, FLUSH_EVERY))

    def open_gateways(self) -> list[Gateway]:
        return [gateway for gateway in self.gateways if gateway.is_open]

    async def _save_redis(self) -> None:
        while True:
            await asyncio.sleep(SAVE_EVERY)
            self.redis.save()

    def take_fault(self, loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        """Nothing but being killed may end a task that nobody waits for."""
        error = context.get("exception")
        if isinstance(error, Exception):
            self.reality.violation = self.reality.violation or Violation(f"a task failed: {error!r}")

    def living(self) -> list[Member]:
        return [member for member in self.members if member.process.alive]

    async def _troubles(self) -> None:
        end = self.loop.time() + self.troubled
        while self.loop.time() < end:
            await asyncio.sleep(self.chance.expovariate(1.5))
            self._check_members()
            if self.chance.random() < 0.85:
                self._use()
            else:
                self._disturb()

    def _check_members(self) -> None:
        if self.reality.violation is not None:
            raise self.reality.violation
        for member in self.members:
            if member.task.done() and member.process.alive:
                member.task.result()
                raise AssertionError("a coordinator ended by itself")

    def _use(self) -> None:
        """A person does something, and may well be refused."""
        name = self.chance.choice(list(self.database.rows))
        luck = self.chance.random()
        try:
            if luck < 0.5:
                self._type(name)
            elif luck < 0.85:
                self.gate.set_desired_state(name, self.chance.choice(WISHES))
            elif luck < 0.875:
                self.gate.delete(name)
            elif luck < 0.88:
                self.gate.delete_now(name)
            elif luck < 0.92:
                self.gate.undelete(name)
            elif luck < 0.96:
                self.gate.cancel(name)
            else:
                self._recover(name)
        except Problem as problem:
            self.reality.tell(name, f"is refused: {problem.code}")

    def _type(self, name: str) -> None:
        self._wrote += 1
        gateways = self.open_gateways()
        if gateways and self.reality.write(name, f"{self._wrote:06}".encode()):
            self.chance.choice(gateways).recorder.touch(name)

    def _recover(self, name: str) -> None:
        """As its owner would: with a choice where one is asked for, or where nothing else has helped."""
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
        known = [
            item.fact.archive_op_id
            for item in self.database.archives.values()
            if item.fact.workspace_id == name and not item.removed
        ]
        if known and self.chance.random() < 0.6:
            self.gate.recover(name, RecoverSource.ARCHIVE, self.chance.choice(known))
        else:
            self.gate.recover(name, RecoverSource.EMPTY, None)

    def _disturb(self) -> None:
        disturbances: tuple[Callable[[], None], ...] = (
            self._kill, self._kill, self._pause, self._pause, self._cut_database, self._break_part,
            self._break_part, self._kill_job, self._kill_job, self._end_container, self._hang_container,
            self._vandalise_home, self._vandalise_archive, self._leave_half_a_home, self._lose_redis,
            self._replace_gateway, self._close_all_gateways,
        )  # fmt: skip
        self.chance.choice(disturbances)()

    def _kill(self) -> None:
        if not self.living():
            return
        member = self.chance.choice(self.living())
        self.reality.tell("---", f"{member.process.name} is killed")
        self._end(member)
        self.loop.call_later(self.chance.uniform(0.1, 20), self._start_coordinator)

    def _end(self, member: Member) -> None:
        member.process.kill()
        member.task.cancel()
        session = self.database.leadership.session
        if session is not None and session.process is member.process:
            self.database.leadership.session = None

    def _pause(self) -> None:
        member = self.chance.choice(self.living() or [None])  # type: ignore[list-item]
        if member is None or not member.process.going.is_set():
            return
        self.reality.tell("---", f"{member.process.name} is stopped")
        member.process.going.clear()
        self.loop.call_later(self.chance.uniform(1, 90), member.process.going.set)

    def _cut_database(self) -> None:
        self.reality.tell("---", "the database restarts")
        self.database.leadership.session = None
        self.reality.down["database"] = self.loop.time() + self.chance.uniform(0.1, 8)

    def _break_part(self) -> None:
        part = self.chance.choice(PARTS)
        self.reality.tell("---", f"{part} is down")
        self.reality.down[part] = self.loop.time() + self.chance.expovariate(1 / 20)

    def _kill_job(self) -> None:
        running = self.jobs.running()
        if running:
            self.jobs.kill(self.chance.choice(running))

    def _end_container(self) -> None:
        name = self._some(list(self.reality.containers))
        if name is None:
            return
        if self.chance.random() < 0.5:
            self.reality.containers[name].running = False
        else:
            del self.reality.containers[name]

    def _hang_container(self) -> None:
        name = self._some(list(self.reality.containers))
        if name is not None:
            container, now = self.reality.containers[name], self.loop.time()
            until = now + self.chance.uniform(5, 120)
            if container.was_seen_ready(now):
                container.silent_from = now
            container.silent_until = until

    def _vandalise_home(self) -> None:
        name = self._some([name for name, disk in self.reality.disks.items() if disk.home is not None])
        if name is None or self.chance.random() < 0.5:
            return
        disk = self.reality.disk(name)
        self.reality.tell(name, "someone removes the home")
        self.reality.vandalise(name)
        assert disk.home is not None
        disk.home.vandalised, disk.home = True, None
        self.reality.changed(name)

    def _vandalise_archive(self) -> None:
        key = self._some(list(self.reality.store))
        if key is None or self.chance.random() < 0.5:
            return
        name = key.split("/")[0]
        self.reality.vandalise(name)
        if self.chance.random() < 0.5:
            self.reality.tell(name, f"someone removes the archive {key}")
            del self.reality.store[key]
        else:
            self.reality.tell(name, f"bits flip in the archive {key}")
            self.reality.store[key].content = b"rotten"
        self.reality.changed(name)

    def _leave_half_a_home(self) -> None:
        """Someone, or a dying disk, leaves a directory without a marker where a home will be."""
        name = self._some(list(self.database.rows))
        disk = self.reality.disk(name or "")
        if name is not None and disk.home is None:
            disk.home, disk.marker = Home(b"half"), None

    def _lose_redis(self) -> None:
        """Redis dies, and comes back empty or with an older snapshot."""
        self.reality.tell("---", "Redis loses data")
        self.redis.lose(self.redis.saved if self.chance.random() < 0.5 else ActivitySnapshot({}, {}))

    def _replace_gateway(self) -> None:
        gateways = self.open_gateways()
        if gateways:
            self._close_gateway(self.chance.choice(gateways))
        self._start_gateway()

    def _close_gateway(self, gateway: Gateway) -> None:
        if self.chance.random() < 0.5:
            self.reality.tell("---", f"{gateway.name} is told to stop")
            gateway.end()
        else:
            self.reality.tell("---", f"{gateway.name} is killed")
            gateway.kill()

    def _close_all_gateways(self) -> None:
        """Nobody can reach a workspace for a while."""
        for gateway in self.open_gateways():
            self._close_gateway(gateway)
        for _ in range(GATEWAYS):
            self.loop.call_later(self.chance.uniform(1, 250), self._start_gateway)

    def _some(self, names: list[str]) -> str | None:
        return self.chance.choice(names) if names else None

    def _heal(self) -> None:
        """From here on nothing fails any more."""
        self.reality.tell("---", "peace")
        self.faults.rate = 0.0
        self.reality.down.clear()
        for member in self.living():
            member.process.going.set()
        for container in self.reality.containers.values():
            container.silent_until = 0.0
        while len(self.living()) < COORDINATORS:
            self._start_coordinator()

    async def _peace(self) -> None:
        end = self.loop.time() + PATIENCE
        while self.loop.time() < end:
            await asyncio.sleep(30)
            self._check_members()
            waiting = [row for row in self.database.rows.values() if not self._is_well(row)]
            if not waiting:
                return
            for row in waiting:
                if row.phase is Phase.ERROR and row.request is None:
                    self._recover_in_peace(row.id)
        row = waiting[0]
        self.reality.fail(row.id, f"does not come to rest: {row.phase} {row.operation} {row.desired_state}")

    def _recover_in_peace(self, name: str) -> None:
        try:
            self._recover(name)
        except Problem as problem:
            self.reality.tell(name, f"is refused: {problem}")

    def _is_well(self, row: Workspace) -> bool:
        """At rest where it is wanted, with what its owner has put there."""
        if row.purged_at is not None:
            return True
        if (
            row.deleted_at is not None
            and self.loop.moment() > row.deleted_at + self.retention + PURGED_WITHIN
        ):
            return False
        if row.operation is not Operation.NONE or row.request is not None or row.phase is Phase.ERROR:
            return False
        if row.phase.value != row.desired_state.value:
            return False
        return self._has_truth(row)

    def _has_truth(self, row: Workspace) -> bool:
        truth, disk = self.reality.truths[row.id], self.reality.disk(row.id)
        if row.phase in (Phase.RUNNING, Phase.STANDBY):
            return disk.home is not None and disk.home.content == truth.content
        if row.phase is Phase.ARCHIVED:
            item = self.reality.store.get(row.archive_key or "")
            there = disk.home is not None and disk.marker is not None
            return item is not None and (item.content == truth.content or truth.wounded) and not there
        return True


def run(seed: int, history: type[History] = History) -> Outcome:
    """Live through one history; raises Violation, with its story."""
    loop = VirtualLoop()
    asyncio.set_event_loop(loop)
    made = history(seed, loop)
    loop.set_exception_handler(made.take_fault)
    try:
        outcome = loop.run_until_complete(made.run())
    except Violation as violation:
        told = Violation(
            f"seed {seed}: {violation}\nTo live through it again: python -m tests.simulation {seed}"
        )
        told.story = tuple(made.reality.story)
        raise told from violation
    finally:
        asyncio.set_event_loop(None)
        loop.close()
    return outcome
