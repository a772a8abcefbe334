"""Health checks and metrics of a real leader: a failure appears with its remedy, and recovers."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime, timedelta
from ipaddress import IPv4Network

import pytest
from aiohttp import web

from codehub import health_endpoints
from codehub.coordinator import health_runner
from codehub.coordinator.gc_runner import GcRunner
from codehub.coordinator.health_runner import HealthRunner
from codehub.coordinator.metrics import CoordinatorMetrics
from codehub.coordinator.observer import Observer
from codehub.coordinator.provider_interfaces import Providers
from codehub.database.leadership import StaleLeader
from codehub.domain.disk import Reserve
from codehub.domain.gc import GcRules
from codehub.domain.health_checks import REMEDIES, CheckName, CheckResult, Readiness
from codehub.domain.observation import Observation
from codehub.domain.states import DesiredState, Phase
from codehub.domain.workspace import Workspace
from codehub.runtimes.docker.runtime import DockerOptions, DockerRuntime
from codehub.storage.archive.async_archive_store import ArchiveStore
from codehub.storage.installation_marker import MARKER
from tests.integration.coordinator.conftest import INSTALLATION, CoordinatorStack, value
from tests.waiting import PATIENCE, eventually

WORKSPACE, ARCHIVE = "01hzy0000000000000000000aa", "01hzy0000000000000000000ab"


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_endpoints, "CHECK_TIMEOUT", PATIENCE)


async def read_readiness(stack: CoordinatorStack) -> Readiness:
    return await health_endpoints.check_readiness(stack.settings.database_url, stack.settings.redis_url)


async def until_degraded(stack: CoordinatorStack, *names: CheckName) -> Readiness:
    def holds(found: Readiness) -> bool:
        return found.ready and found.degraded == list(names)

    found = await eventually(lambda: read_readiness(stack), f"{names or 'nothing'} to be degraded", holds)
    for name in names:
        assert found.checks[name].remedy == REMEDIES[name]
    return found


async def test_a_store_that_is_gone_degrades_and_turns_back(stack: CoordinatorStack) -> None:
    await stack.start()
    await until_degraded(stack)
    archives, away = stack.settings.data_dir / "archives", stack.settings.data_dir / "away"
    archives.rename(away)
    found = await until_degraded(stack, CheckName.ARCHIVES)
    assert "archives" in found.checks[CheckName.ARCHIVES].message
    away.rename(archives)
    await until_degraded(stack)


async def test_a_root_of_homes_without_its_marker_degrades_and_turns_back(stack: CoordinatorStack) -> None:
    await stack.start()
    await until_degraded(stack)
    marker = stack.settings.data_dir / "volumes" / MARKER
    marker.rename(marker.with_name("away"))
    found = await until_degraded(stack, CheckName.VOLUMES, CheckName.DISK)
    assert MARKER in found.checks[CheckName.VOLUMES].message
    marker.with_name("away").rename(marker)
    await until_degraded(stack)


async def test_a_check_that_fails_unexpectedly_does_not_hide_the_other_results(
    stack: CoordinatorStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(_self: HealthRunner) -> str:
        raise RuntimeError("a driver failed")

    monkeypatch.setattr(HealthRunner, "_archives", fail)
    await stack.start()
    found = await until_degraded(stack, CheckName.ARCHIVES)
    assert found.checks[CheckName.ARCHIVES].message == (
        "The check failed (RuntimeError): see the coordinator's log."
    )
    assert found.checks[CheckName.VOLUMES].ok


async def test_a_gc_alarm_stays_until_a_cycle_without_one(stack: CoordinatorStack) -> None:
    """An archive of no workspace in this database may mean that the database is the wrong one."""
    directory = stack.settings.data_dir / "archives" / WORKSPACE / ARCHIVE
    directory.mkdir(parents=True)
    (directory / "home.tar.zst").write_bytes(b"an archive")
    metrics = await stack.start(stack.with_settings(coordinator_gc_interval=0.2))
    found = await until_degraded(stack, CheckName.GC)
    assert "Nothing is deleted" in found.checks[CheckName.GC].message
    assert value(metrics, "codehub_gc_alarms_total") >= 1
    await stack.stop()

    written = await last_written(stack)
    await stack.start()  # its first GC comes in a minute: until then the alarm stands
    await eventually(lambda: last_written(stack), "the next leader to check", lambda at: at > written)
    assert (await read_readiness(stack)).degraded == [CheckName.GC]
    await stack.stop()
    await stack.create(DesiredState.ARCHIVED)
    await stack.start(stack.with_settings(coordinator_gc_interval=0.2))
    await until_degraded(stack)


async def last_written(stack: CoordinatorStack) -> datetime:
    written: datetime = await stack.pool.fetchval("SELECT max(checked_at) FROM health_checks")
    return written


def runner(stack: CoordinatorStack, epoch: int, providers: Providers, reserve: int = 0) -> HealthRunner:
    database = stack.leader_database(epoch, timedelta(1))
    gc = GcRunner(database, providers, GcRules(timedelta(1), timedelta(1)), epoch)
    return HealthRunner(database, providers, gc, Reserve(reserve))


async def test_a_disk_below_its_reserve_degrades_and_turns_back(stack: CoordinatorStack) -> None:
    epoch = await stack.take_leadership()
    await runner(stack, epoch, stack.providers, reserve=1 << 60).tick()
    found = await read_readiness(stack)
    assert found.degraded == [CheckName.DISK]
    assert "starts and restores wait" in found.checks[CheckName.DISK].message
    assert found.checks[CheckName.DISK].remedy == REMEDIES[CheckName.DISK]
    await runner(stack, epoch, stack.providers).tick()
    assert (await read_readiness(stack)).degraded == []


async def test_an_engine_that_does_not_answer_degrades_and_turns_back(stack: CoordinatorStack) -> None:
    async def version(_request: web.Request) -> web.Response:
        return web.json_response({"ApiVersion": "1.43", "Version": "24"})

    socket = stack.settings.data_dir / "engine.sock"
    options = DockerOptions(
        f"unix://{socket}",
        stack.settings.data_dir,
        IPv4Network("10.222.0.0/16"),
        egress=None,
        executions=stack.settings.data_dir / "execs",
    )
    runtime = DockerRuntime(INSTALLATION, options)
    app = web.Application()
    app.router.add_get("/{path:.*}", version)
    server = web.AppRunner(app, shutdown_timeout=1)
    try:
        checks = runner(stack, await stack.take_leadership(), replace(stack.providers, runtime=runtime))
        await checks.tick()
        found = await read_readiness(stack)
        assert found.degraded == [CheckName.RUNTIME]
        assert f"{socket} does not answer" in found.checks[CheckName.RUNTIME].message
        await server.setup()
        await web.UnixSite(server, str(socket)).start()
        await checks.tick()
        assert (await read_readiness(stack)).degraded == []
    finally:
        await runtime.close()
        await server.cleanup()


class HangingStore(ArchiveStore):
    """The store on a disk that hangs."""

    calls = 0

    def __init__(self, url: str, installation_id: str) -> None:
        super().__init__(url, installation_id)
        self.answers = asyncio.Event()

    async def check(self) -> None:
        self.calls += 1
        await self.answers.wait()
        await super().check()


async def test_a_store_that_hangs_delays_no_other_check_and_is_checked_once(
    stack: CoordinatorStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health_runner, "CHECK_TIMEOUT", 0.3)
    store = HangingStore(f"file://{stack.settings.data_dir}/archives", INSTALLATION)
    checks = runner(stack, await stack.take_leadership(), replace(stack.providers, archives=store))

    async def failed() -> list[CheckName]:
        return [name for name, result in (await checks.tick()).items() if not result.ok]

    for _ in range(2):
        await eventually(failed, "the store alone to fail", lambda names: names == [CheckName.ARCHIVES])
    assert store.calls == 1
    assert "No answer within" in (await read_readiness(stack)).checks[CheckName.ARCHIVES].message
    store.answers.set()
    monkeypatch.setattr(health_runner, "CHECK_TIMEOUT", PATIENCE)
    await checks.tick()
    assert (await read_readiness(stack)).degraded == []
    checks.close()


async def test_results_are_written_when_a_check_turns_and_only_by_the_leader(
    stack: CoordinatorStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    epoch = await stack.take_leadership()
    checks = runner(stack, epoch, stack.providers)
    await checks.tick()
    written = await last_written(stack)
    await checks.tick()
    assert await last_written(stack) == written
    monkeypatch.setattr(health_runner, "SAVE_EVERY", 0.0)
    await checks.tick()
    assert await last_written(stack) > written
    await stack.take_leadership()
    with pytest.raises(StaleLeader):
        await stack.leader_database(epoch, timedelta(1)).save_health_checks(
            {CheckName.DISK: CheckResult(False, "late")}
        )
    assert (await read_readiness(stack)).checks[CheckName.DISK].ok


async def test_results_that_are_too_old_count_as_unknown(stack: CoordinatorStack) -> None:
    await runner(stack, await stack.take_leadership(), stack.providers).tick()
    await stack.pool.execute("UPDATE health_checks SET checked_at = checked_at - interval '4 minutes'")
    found = await read_readiness(stack)
    assert found.ready and len(found.degraded) == 5
    assert found.checks[CheckName.DISK].message.startswith("Unknown: last checked 4 minutes ago")


def reached(
    metrics: CoordinatorMetrics, expected: float, name: str, **labels: str
) -> Callable[[], Awaitable[bool]]:
    async def seen() -> bool:
        return value(metrics, name, **labels) == expected

    return seen


async def test_a_workspaces_life_is_counted(stack: CoordinatorStack) -> None:
    metrics = await stack.start()
    workspace_id = await stack.create()
    await stack.until_phase(workspace_id, Phase.RUNNING)
    (await stack.home(workspace_id) / "file").write_bytes(os.urandom(100_000))
    assert value(metrics, "codehub_coordinator_leader") == 1
    assert value(metrics, "codehub_coordinator_epoch") >= 1
    await stack.reach(workspace_id, DesiredState.ARCHIVED)
    await stack.reach(workspace_id, DesiredState.STANDBY)
    outcomes = {"PROVISIONING": 1, "STARTING": 1, "STOPPING": 1, "ARCHIVING": 1, "RESTORING": 1}
    for operation, count in outcomes.items():
        labels = {"operation": operation, "outcome": "finished"}
        await eventually(
            reached(metrics, count, "codehub_coordinator_operations_total", **labels), f"{operation} to count"
        )
        assert value(metrics, "codehub_coordinator_operation_seconds_count", **labels) == count
    for kind in ("archive", "restore"):
        assert value(metrics, "codehub_storage_jobs_total", kind=kind, outcome="succeeded") == 1
        assert value(metrics, "codehub_storage_job_bytes_total", kind=kind) > 100_000
        assert value(metrics, "codehub_storage_job_seconds_total", kind=kind) > 0
    assert value(metrics, "codehub_storage_jobs_total", kind="delete", outcome="succeeded") == 1
    assert value(metrics, "codehub_health_check", check="disk") == 1
    page = metrics.exposition()[0].decode()
    assert workspace_id not in page and "u1" not in page
    await stack.stop()
    assert value(metrics, "codehub_coordinator_leader") == 0


async def test_a_ttl_that_fires_and_a_failed_tick_are_counted(
    stack: CoordinatorStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics = await stack.start(stack.with_settings(ttl_standby_seconds=1))
    workspace_id = await stack.create()
    await stack.until_phase(workspace_id, Phase.STANDBY)
    await eventually(
        reached(metrics, 1, "codehub_ttl_expirations_total", desired_state="STANDBY"), "the TTL to be counted"
    )

    async def broken(_self: HealthRunner) -> None:
        raise ValueError("a defect")

    monkeypatch.setattr(HealthRunner, "tick", broken)

    async def counted() -> bool:
        return value(metrics, "codehub_coordinator_failed_ticks_total", component="health") >= 1

    await eventually(counted, "the failed tick to be counted")


async def test_the_bytes_that_gc_frees_are_counted(stack: CoordinatorStack) -> None:
    await stack.start()
    workspace_id = await stack.create()
    await stack.until_phase(workspace_id, Phase.RUNNING)
    (await stack.home(workspace_id) / "file").write_bytes(os.urandom(100_000))
    await stack.reach(workspace_id, DesiredState.ARCHIVED)
    (replaced,) = await stack.providers.archives.list()
    await stack.reach(workspace_id, DesiredState.STANDBY)
    await stack.reach(workspace_id, DesiredState.ARCHIVED)
    await stack.stop()
    metrics = await stack.start(
        stack.with_settings(coordinator_gc_interval=0.5, gc_orphan_grace_seconds=0, archives_kept=0)
    )
    await eventually(
        reached(metrics, replaced.bytes, "codehub_gc_freed_bytes_total"), "the freed bytes to be counted"
    )
    assert replaced.bytes > 100_000
    assert len(await stack.providers.archives.list()) == 1


async def test_a_decision_that_was_overtaken_is_counted(
    stack: CoordinatorStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner's request is committed after the leader has read the row and before it writes."""
    metrics = await stack.start()
    workspace_id = await stack.create(DesiredState.STANDBY)
    await stack.until_phase(workspace_id, Phase.STANDBY)
    observe = Observer.observe
    overtaken = False

    async def overtake(self: Observer, workspace: Workspace, now: datetime) -> Observation:
        nonlocal overtaken
        if workspace.desired_state is DesiredState.RUNNING and not overtaken:
            overtaken = True
            await stack.set_desired_state(workspace_id, DesiredState.STANDBY)
        return await observe(self, workspace, now)

    monkeypatch.setattr(Observer, "observe", overtake)
    await stack.set_desired_state(workspace_id, DesiredState.RUNNING)
    await eventually(reached(metrics, 1, "codehub_coordinator_cas_losses_total"), "the loss to be counted")
    await stack.until_phase(workspace_id, Phase.STANDBY)
