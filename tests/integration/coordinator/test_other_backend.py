"""A coordinator leaves a workspace of another runtime alone. Only `codehub up` migrates it."""

from datetime import UTC, datetime, timedelta

import pytest
from redis.asyncio import Redis
from sqlalchemy import update

from codehub.bus.activity import ActivityLog
from codehub.cli import database_setup, runtime_choice
from codehub.coordinator.gc_runner import GcRunner
from codehub.coordinator.leadership_loop import ttl_rules_of
from codehub.coordinator.ttl_runner import TtlRunner
from codehub.database.tables import workspaces
from codehub.domain.gc import GcRules
from codehub.domain.other_backends import left_alone_message
from codehub.domain.states import DesiredState, Operation, Phase
from codehub.domain.workspace import Workspace
from tests.integration.coordinator.conftest import INSTALLATION, CoordinatorStack

RULES = GcRules(orphan_grace=timedelta(0), retention=timedelta(0))


async def put_on(stack: CoordinatorStack, workspace_id: str, runtime: str, **values: object) -> None:
    async with stack.engine.begin() as conn:
        changed = update(workspaces).where(workspaces.c.id == workspace_id)
        await conn.execute(changed.values(instance_backend=runtime, **values))


def is_left_alone(workspace: Workspace) -> bool:
    return left_alone_message(workspace) is not None


async def test_nothing_begins_until_the_runtime_is_its_own_again(stack: CoordinatorStack) -> None:
    workspace_id = await stack.create()
    await put_on(stack, workspace_id, "docker")
    await stack.start()
    waiting = await stack.until(workspace_id, is_left_alone)
    assert waiting.phase is Phase.PENDING and waiting.operation is Operation.NONE
    assert "RUNTIME=docker" in (left_alone_message(waiting) or "")
    own = await stack.create()
    await stack.until_phase(own, Phase.RUNNING)  # by then the other one has had its turn as well
    assert (await stack.get(workspace_id)).op_id is None
    assert set(await stack.providers.runtime.observe()) == {own}
    await put_on(stack, workspace_id, "process")
    running = await stack.until_phase(workspace_id, Phase.RUNNING)
    assert not is_left_alone(running)


async def test_ttl_and_gc_touch_neither_it_nor_what_it_has(stack: CoordinatorStack, redis_url: str) -> None:
    workspace_id = await stack.create(DesiredState.ARCHIVED)
    await stack.start()
    archived = await stack.until_phase(workspace_id, Phase.ARCHIVED)
    standby = await stack.create(DesiredState.STANDBY)
    await stack.until_phase(standby, Phase.STANDBY)
    epoch = await stack.take_leadership()
    now = datetime.now(UTC) + timedelta(days=1)
    deleted = {"desired_state": "DELETED", "deleted_at": datetime.now(UTC), "phase": "DELETED"}
    await put_on(stack, workspace_id, "docker", **deleted)
    await put_on(stack, standby, "docker")
    database = stack.leader_database(epoch, RULES.retention)

    redis = Redis.from_url(redis_url)
    rules = ttl_rules_of(stack.with_settings(ttl_archive_seconds=1))
    await TtlRunner(database, ActivityLog(redis), stack.providers.archives, rules, lambda: now).tick()
    await redis.aclose()
    assert (await stack.get(standby)).desired_state is DesiredState.STANDBY

    collector = GcRunner(database, stack.providers, RULES, epoch)
    for _ in range(2):
        await collector.tick(now)
    assert (await stack.get(workspace_id)).purged_at is None
    assert [stored.key for stored in await stack.providers.archives.list()] == [archived.archive_key]


@pytest.mark.parametrize(
    ("noted", "schema_before", "after"),
    [
        ("docker", "0009", "process"),
        (None, "0009", "process"),
        ("process", "0009", "docker"),
        ("process", "0006", "process"),
    ],
)
async def test_up_carries_workspaces_over_when_it_has_changed_the_runtime(
    stack: CoordinatorStack, noted: runtime_choice.RuntimeKind | None, schema_before: str, after: str
) -> None:
    """Without a recorded runtime, an engine that does not answer counts as removed by the operator."""
    workspace_id = await stack.create(DesiredState.STANDBY)
    await put_on(stack, workspace_id, "docker")
    settings = stack.with_settings(docker_host="unix:///nowhere/docker.sock")
    (settings.data_dir / "runtime").mkdir(exist_ok=True)
    if noted is not None:
        runtime_choice.save_runtime(settings.data_dir, noted)
    await database_setup.move_from_other_runtime(stack.engine, settings, INSTALLATION, schema_before)
    assert (await stack.get(workspace_id)).instance_backend == after
