"""The part of the gate for commands, on PostgreSQL."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncEngine

from codehub.database import exec_gate, exec_queries, gate
from codehub.database.exec_gate import ExecActor, NewExec
from codehub.database.tables import timeline, workspaces
from codehub.domain.execs import KEPT_BYTES_PER_WORKSPACE, KEPT_PER_WORKSPACE, Exec, ExecState
from codehub.domain.problems import InvalidState, OperationInProgress, Problem, TooManyRequests
from codehub.domain.states import DesiredState, Phase
from codehub.domain.workspace import Workspace
from tests.integration.database.conftest import BACKENDS, create

NOW = datetime.now(UTC)
PERSON = ExecActor("one", "one", is_person=True)
PROGRAM = ExecActor("one", "one (token ci)", is_person=False)
WINDOW = 16 << 20
NEW = NewExec("", ["true"], "", False, None, None, None)


async def running_workspace(engine: AsyncEngine) -> str:
    async with engine.begin() as conn:
        made = await create(conn, desired=DesiredState.RUNNING)
    await change(engine, made.id, phase="RUNNING", last_access_at=NOW - timedelta(hours=1))
    return made.id


async def change(engine: AsyncEngine, workspace_id: str, **values: object) -> None:
    async with engine.begin() as conn:
        await conn.execute(update(workspaces).where(workspaces.c.id == workspace_id).values(**values))


async def load(engine: AsyncEngine, workspace_id: str) -> Workspace:
    async with engine.begin() as conn:
        return await gate.lock_workspace(conn, workspace_id)


async def insert(
    engine: AsyncEngine,
    workspace_id: str,
    actor: ExecActor = PERSON,
    *,
    max_alive: int = 1000,
    now: datetime = NOW,
    **fields: object,
) -> tuple[Exec, bool]:
    new = replace(NEW, workspace_id=workspace_id, **fields)  # type: ignore[arg-type]
    async with engine.begin() as conn:
        return await exec_gate.insert_exec(
            conn, new, actor, max_alive=max_alive, output_bytes=WINDOW, now=now
        )


async def end(engine: AsyncEngine, row: Exec, at: datetime = NOW) -> bool:
    changes = {"state": ExecState.EXITED, "ended_at": at, "exit_code": 0}
    async with engine.begin() as conn:
        return await exec_gate.save_refreshed(conn, row, changes, now=at)


async def test_a_ttl_decided_before_a_command_starts_does_not_fire(engine: AsyncEngine) -> None:
    workspace_id = await running_workspace(engine)
    seen = await load(engine, workspace_id)
    await insert(engine, workspace_id, PROGRAM)
    async with engine.begin() as conn:
        assert await gate.apply_expiry(conn, seen, DesiredState.STANDBY, "idle", now=NOW) is None
    after = await load(engine, workspace_id)
    assert after.desired_state is DesiredState.RUNNING
    assert (after.last_access_at, after.holds_changed_at) == (NOW, NOW)
    assert after.person_access_at == seen.person_access_at, "a program is no person"
    await insert(engine, workspace_id, PERSON)
    assert (await load(engine, workspace_id)).person_access_at == NOW


async def test_a_command_needs_a_workspace_that_runs_and_goes_on_running(engine: AsyncEngine) -> None:
    workspace_id = await running_workspace(engine)
    operation = {"operation": "STOPPING", "op_id": "o", "op_started_at": NOW}
    idle = {"operation": "NONE", "op_id": None, "op_started_at": None}
    cases: list[tuple[dict[str, object], type[Problem]]] = [
        ({"phase": Phase.STANDBY.value}, InvalidState),
        ({"phase": "RUNNING", "desired_state": "STANDBY"}, InvalidState),
        ({"desired_state": "RUNNING", **operation}, OperationInProgress),
    ]
    for values, problem in cases:
        await change(engine, workspace_id, **values)
        with pytest.raises(problem):
            await insert(engine, workspace_id)
    await change(engine, workspace_id, **idle)
    assert (await insert(engine, workspace_id))[1]


async def test_parallel_calls_with_one_key_make_one_command(engine: AsyncEngine) -> None:
    workspace_id = await running_workspace(engine)
    made = await asyncio.gather(*(insert(engine, workspace_id, key="k", body_hash=b"a") for _ in range(20)))
    assert len({row.id for row, _ in made}) == 1
    assert sum(is_new for _, is_new in made) == 1
    with pytest.raises(InvalidState, match="another command"):
        await insert(engine, workspace_id, key="k", body_hash=b"b")
    await change(engine, workspace_id, phase="STANDBY")
    again, is_new = await insert(engine, workspace_id, key="k", body_hash=b"a")
    assert (again.id, is_new) == (made[0][0].id, False), "also when the workspace runs no longer"
    await change(engine, workspace_id, phase="RUNNING")
    later, is_new = await insert(
        engine, workspace_id, key="k", body_hash=b"b", now=NOW + timedelta(days=1, seconds=1)
    )
    assert is_new and later.id != again.id


async def test_an_end_is_recorded_once_and_changes_the_holds(engine: AsyncEngine) -> None:
    workspace_id = await running_workspace(engine)
    row, _ = await insert(engine, workspace_id)
    later = NOW + timedelta(minutes=1)
    assert await end(engine, row, later)
    assert (await load(engine, workspace_id)).holds_changed_at == later
    assert not await end(engine, row, later + timedelta(minutes=1)), "another part was faster"


async def test_a_user_has_a_bounded_number_of_commands(engine: AsyncEngine) -> None:
    workspace_id = await running_workspace(engine)
    row, _ = await insert(engine, workspace_id, max_alive=1)
    with pytest.raises(TooManyRequests):
        await insert(engine, workspace_id, max_alive=1)
    await end(engine, row)
    await insert(engine, workspace_id, max_alive=1)


async def test_the_oldest_ended_commands_are_forgotten(engine: AsyncEngine) -> None:
    workspace_id = await running_workspace(engine)
    alive, _ = await insert(engine, workspace_id)
    for _ in range(KEPT_PER_WORKSPACE + 2):
        row, _ = await insert(engine, workspace_id)
        await end(engine, row)
    last, _ = await insert(engine, workspace_id)
    async with engine.connect() as conn:
        kept = [row.id for row in await exec_queries.newest(conn, workspace_id)]
    assert len(kept) == KEPT_PER_WORKSPACE + 1
    assert {alive.id, last.id} <= set(kept)


async def test_ended_commands_with_much_output_make_room(engine: AsyncEngine) -> None:
    workspace_id = await running_workspace(engine)
    fit = KEPT_BYTES_PER_WORKSPACE // (2 * WINDOW)
    for _ in range(fit + 2):
        row, _ = await insert(engine, workspace_id)
        changes = {
            "state": ExecState.EXITED,
            "ended_at": NOW,
            "stdout_bytes": 1 << 40,
            "stderr_bytes": 1 << 40,
        }
        async with engine.begin() as conn:
            assert await exec_gate.save_refreshed(conn, row, changes, now=NOW)
    await insert(engine, workspace_id)
    async with engine.connect() as conn:
        assert len(await exec_queries.newest(conn, workspace_id)) == fit + 1


async def test_output_of_archived_workspaces_is_not_kept(engine: AsyncEngine) -> None:
    workspace_id = await running_workspace(engine)
    row, _ = await insert(engine, workspace_id)
    await end(engine, row)
    await change(engine, workspace_id, phase="ARCHIVED", desired_state="ARCHIVED")
    async with engine.begin() as conn:
        assert await exec_gate.mark_archived_output(conn, [row.id], NOW) == [row.id]
        assert await exec_queries.with_output(conn, [row.id]) == set()
        assert await exec_queries.with_home(conn, [workspace_id]) == set()
        assert await exec_gate.remove_expired(conn, NOW, NOW) == 0
        assert await exec_gate.remove_expired(conn, NOW + timedelta(seconds=1), NOW) == 1
        found = await conn.scalar(select(workspaces.c.id).where(workspaces.c.id == workspace_id))
    assert found == workspace_id


async def entries(engine: AsyncEngine, workspace_id: str) -> list[tuple[str, str, str]]:
    """Return the timeline but for its first entry, that of the creation."""
    c = timeline.c
    query = select(c.actor, c.event, c.message).where(c.workspace_id == workspace_id).order_by(c.id)
    async with engine.connect() as conn:
        return [(row.actor, row.event, row.message) for row in (await conn.execute(query)).all()[1:]]


async def forget(engine: AsyncEngine, row: Exec, actor: ExecActor) -> None:
    async with engine.begin() as conn:
        await exec_gate.forget(conn, row, actor, now=NOW)


async def test_the_timeline_tells_what_commands_a_token_started_and_deleted(engine: AsyncEngine) -> None:
    workspace_id = await running_workspace(engine)
    by_person, _ = await insert(engine, workspace_id, PERSON)
    await forget(engine, (await insert(engine, workspace_id, PERSON))[0], PERSON)
    assert await entries(engine, workspace_id) == []
    row, _ = await insert(
        engine, workspace_id, PROGRAM, command=["echo", "a secret"], key="k", body_hash=b"h"
    )
    await insert(engine, workspace_id, PROGRAM, key="k", body_hash=b"h")
    await forget(engine, by_person, PROGRAM)
    await forget(engine, by_person, PROGRAM)
    assert await entries(engine, workspace_id) == [
        (PROGRAM.name, "command-started", f"Started the command {row.id}."),
        (PROGRAM.name, "command-deleted", f"Deleted the command {by_person.id}."),
    ]


async def test_many_commands_of_a_token_within_an_hour_have_two_entries(engine: AsyncEngine) -> None:
    workspace_id = await running_workspace(engine)
    for _ in range(20):
        row, _ = await insert(engine, workspace_id, PROGRAM)
        await forget(engine, row, PROGRAM)
    assert await entries(engine, workspace_id) == [
        (PROGRAM.name, "command-started", f"Started 20 commands within an hour, the last one {row.id}."),
        (PROGRAM.name, "command-deleted", f"Deleted 20 commands within an hour, the last one {row.id}."),
    ]
    other = replace(PROGRAM, name="one (token other)")
    await insert(engine, workspace_id, other)
    await insert(engine, workspace_id, PROGRAM, now=NOW + timedelta(hours=1))
    assert [actor for actor, _, _ in (await entries(engine, workspace_id))[2:]] == [other.name, PROGRAM.name]


async def kept_output(engine: AsyncEngine, exec_id: str) -> set[str]:
    async with engine.connect() as conn:
        return await exec_queries.with_output(conn, [exec_id])


async def test_a_key_answers_for_a_day_although_the_command_expires(engine: AsyncEngine) -> None:
    workspace_id = await running_workspace(engine)
    row, _ = await insert(engine, workspace_id, key="k", body_hash=b"a")
    await end(engine, row)
    expired = NOW + timedelta(minutes=1)
    async with engine.begin() as conn:
        assert await exec_gate.remove_expired(conn, expired, expired) == 1
        assert await exec_gate.remove_expired(conn, expired, expired) == 0, "nothing more to do"
    assert await kept_output(engine, row.id) == set()
    again, is_new = await insert(engine, workspace_id, key="k", body_hash=b"a", now=expired)
    assert (again.id, again.output_removed, is_new) == (row.id, True, False)
    async with engine.begin() as conn:
        assert await exec_gate.remove_expired(conn, expired, NOW + timedelta(days=1)) == 1
        assert await exec_queries.find(conn, workspace_id, row.id) is None


async def test_a_key_answers_for_a_day_although_newer_commands_need_room(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exec_gate, "KEPT_PER_WORKSPACE", 2)
    workspace_id = await running_workspace(engine)
    row, _ = await insert(engine, workspace_id, key="k", body_hash=b"a")
    await end(engine, row)
    for _ in range(3):
        await end(engine, (await insert(engine, workspace_id))[0])
    assert await kept_output(engine, row.id) == set()
    assert (await insert(engine, workspace_id, key="k", body_hash=b"a"))[0].id == row.id
    await insert(engine, workspace_id, now=NOW + timedelta(days=1))
    async with engine.connect() as conn:
        assert await exec_queries.find(conn, workspace_id, row.id) is None


async def test_the_keys_of_a_day_are_limited(engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exec_gate, "KEYS_PER_WORKSPACE", 2)
    workspace_id = await running_workspace(engine)
    for key in ("a", "b"):
        await insert(engine, workspace_id, key=key, body_hash=b"x")
    with pytest.raises(TooManyRequests, match="with a key"):
        await insert(engine, workspace_id, key="c", body_hash=b"x")
    assert not (await insert(engine, workspace_id, key="a", body_hash=b"x"))[1], (
        "a repeated call is no new one"
    )
    await insert(engine, workspace_id)
    await insert(engine, workspace_id, key="c", body_hash=b"x", now=NOW + timedelta(days=1))


async def test_a_key_is_known_for_a_day(engine: AsyncEngine) -> None:
    """Until then a repeated call wakes nothing. Later it starts another command."""
    workspace_id = await running_workspace(engine)
    for key, age, is_known in (("old", timedelta(days=1), False), ("new", timedelta(hours=23), True)):
        await insert(engine, workspace_id, key=key, body_hash=b"x", now=NOW - age)
        async with engine.connect() as conn:
            assert await exec_queries.has_key(conn, workspace_id, PERSON.id, key) is is_known


async def test_lists_do_not_read_long_commands(engine: AsyncEngine) -> None:
    workspace_id = await running_workspace(engine)
    short, _ = await insert(engine, workspace_id, command=["a"])
    long, _ = await insert(engine, workspace_id, command=["a", "x" * 1024])
    assert long.command == ["a", "x" * 1024]
    async with engine.connect() as conn:
        listed = await exec_queries.newest(conn, workspace_id)
        alive = await exec_queries.alive(conn, BACKENDS.instance)
        found = await exec_queries.find(conn, workspace_id, long.id)
    assert listed == [replace(long, command=[], command_omitted=True), short]
    assert [(row.command, row.command_omitted) for row in alive] == [([], True)] * 2
    assert found == long
