"""The audit log is append-only and bounded, and only the leader's retention removes entries."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from argon2 import PasswordHasher
from sqlalchemy import func, insert, select, text
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine

from codehub.database import accounts, audit, leader_database, passwords
from codehub.database.engine import open_pool
from codehub.database.leader_database import PostgresLeaderDatabase
from codehub.database.leadership import LOCK_TIMEOUT, PostgresTerm, StaleLeader, campaign
from codehub.database.tables import audit_log, counted_failures
from codehub.domain.audit import (
    CLI,
    FAILURES_OF_ALL,
    FAILURES_OF_ONE_NETWORK,
    LOCKS_OF_ALL,
    LOCKS_OF_ONE_ACCOUNT,
    Action,
    Actor,
    ActorKind,
    Target,
    TargetKind,
    window_start,
)
from codehub.domain.problems import Problem
from codehub.domain.states import Role
from tests.integration.database.conftest import BACKENDS

DAY = timedelta(days=1)
HOUR = timedelta(hours=1)
NOW = datetime(2026, 1, 1, 12, 30, tzinfo=UTC)
LIMITS = Target(TargetKind.SETTINGS, None, "limits")


async def count(engine: AsyncEngine) -> int:
    async with engine.connect() as conn:
        return await conn.scalar(select(func.count()).select_from(audit_log)) or 0


async def rows(engine: AsyncEngine) -> list[Any]:
    async with engine.connect() as conn:
        return list((await conn.execute(select(audit_log).order_by(audit_log.c.id))).all())


async def insert_entries(engine: AsyncEngine, at: datetime, entries: int = 1, **values: str) -> None:
    row = {"at": at, "actor_name": "x", "actor_kind": "cli", "action": "user.deleted", "outcome": "success"}
    row |= values
    async with engine.begin() as conn:
        await conn.execute(insert(audit_log), [row | {"details": {}}] * entries)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE audit_log SET actor_name = 'someone else'",
        "DELETE FROM audit_log",
        "TRUNCATE audit_log",
    ],
)
async def test_the_log_is_append_only(engine: AsyncEngine, statement: str) -> None:
    await insert_entries(engine, datetime.now(UTC) - 400 * DAY)
    with pytest.raises(DBAPIError, match="append-only"):
        async with engine.begin() as conn:
            await conn.execute(text(statement))
    assert await count(engine) == 1


@pytest.mark.parametrize(
    ("entry_age", "ahead"), [(400 * DAY, 1), (HOUR, 0)], ids=["a stale leader", "an entry of today"]
)
async def test_retention_by_a_stale_leader_or_of_new_entries_is_rejected(
    engine: AsyncEngine, database_url: str, entry_age: timedelta, ahead: int
) -> None:
    term = await campaign(database_url, "leader")
    assert term is not None
    await insert_entries(engine, datetime.now(UTC) - entry_age)
    with pytest.raises(DBAPIError, match="append-only"):
        async with engine.begin() as conn:
            named = {"epoch": str(term.epoch - ahead)}
            await conn.execute(text("SELECT set_config('codehub.audit_retention', :epoch, true)"), named)
            await conn.execute(text("DELETE FROM audit_log"))
    assert await count(engine) == 1
    await term.resign()


async def test_a_large_entry_cannot_be_stored(engine: AsyncEngine) -> None:
    row = {"at": NOW, "actor_kind": "cli", "action": "user.deleted", "outcome": "success"}
    for values in (
        {"actor_name": "x" * 201, "details": {}},
        {"actor_name": "x", "details": {"k": "x" * 9000}},
        {"actor_name": "x", "details": {}, "actor_kind": "martian"},
    ):
        with pytest.raises(IntegrityError):
            async with engine.begin() as conn:
                await conn.execute(insert(audit_log).values(**row | values))


async def test_long_names_are_truncated(engine: AsyncEngine) -> None:
    actor = Actor(ActorKind.USER, "a" * 1000, "one", "192.0.2.1")
    async with audit.transaction(engine, actor, NOW) as act:
        target = Target(TargetKind.WORKSPACE, "w", "홈" * 1000)
        await act.record(Action.WORKSPACE_DELETED, target, owner="\U0001f600" * 5000)
    [row] = await rows(engine)
    assert {len(text) for text in (row.actor_name, row.target_name, row.details["owner"])} == {200}


@pytest.fixture
def cheap_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    cheap = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
    monkeypatch.setattr(passwords, "_hasher", cheap)
    monkeypatch.setattr(passwords, "DUMMY_HASH", cheap.hash("a password that nobody knows"))


async def fail_to_sign_in(engine: AsyncEngine, name: str, address: str, now: datetime = NOW) -> None:
    with pytest.raises(Problem):
        await accounts.sign_in(engine, name, "a wrong password", address, now=now)


async def count_failures(engine: AsyncEngine) -> int:
    async with engine.connect() as conn:
        return await conn.scalar(select(func.sum(counted_failures.c.failures))) or 0


@pytest.mark.usefixtures("cheap_passwords")
async def test_a_flood_from_one_network_is_counted_and_others_still_get_entries(engine: AsyncEngine) -> None:
    """Each attempt has a new name, so that no lock ends the flood, and a new address in one /64."""
    attempts = FAILURES_OF_ONE_NETWORK + 15
    await asyncio.gather(
        *(fail_to_sign_in(engine, f"name{n}", f"2001:db8::{n + 1:x}") for n in range(attempts))
    )
    assert (await count(engine), await count_failures(engine)) == (FAILURES_OF_ONE_NETWORK, 15)
    await fail_to_sign_in(engine, "name", "2001:db8:0:1::1")
    await fail_to_sign_in(engine, "name", "no address")
    assert (await count(engine), await count_failures(engine)) == (FAILURES_OF_ONE_NETWORK + 2, 15)
    await fail_to_sign_in(engine, "name", "2001:db8::1", NOW + HOUR)
    assert await count(engine) == FAILURES_OF_ONE_NETWORK + 3


@pytest.mark.usefixtures("cheap_passwords")
async def test_a_flood_from_many_networks_is_bounded_too(engine: AsyncEngine) -> None:
    for number in range(FAILURES_OF_ALL + 10):
        await fail_to_sign_in(engine, "one", f"192.0.2.{number}")
    assert (await count(engine), await count_failures(engine)) == (FAILURES_OF_ALL, 10)


async def lock_out(engine: AsyncEngine, user_id: str | None, address: str) -> None:
    target = None if user_id is None else Target(TargetKind.USER, user_id, user_id)
    async with audit.transaction(engine, Actor.anonymous(address), NOW) as act:
        await act.record_failed_password(Action.SESSION_LOCKED, target, failures=5, seconds=60)


@pytest.mark.usefixtures("cheap_passwords")
async def test_a_flood_does_not_hide_that_an_account_is_locked_out(engine: AsyncEngine) -> None:
    root = await accounts.create_account(engine, "root", "a good password", Role.ADMIN, actor=CLI, now=NOW)
    await insert_entries(engine, NOW, FAILURES_OF_ALL, action="session.failed", outcome="failure")
    for _ in range(5):
        await fail_to_sign_in(engine, "root", "192.0.2.1")
    last = (await rows(engine))[-1]
    assert (last.action, last.target_id, await count_failures(engine)) == ("session.locked", root.id, 4)


async def test_entries_of_lockouts_are_bounded_too(engine: AsyncEngine) -> None:
    """Each account has its own bound, and lockouts of unknown names count as failures."""
    for number in range(LOCKS_OF_ONE_ACCOUNT + 2):
        await lock_out(engine, "alice", f"192.0.2.{number}")
    await lock_out(engine, "bob", "192.0.2.1")
    assert (await count(engine), await count_failures(engine)) == (LOCKS_OF_ONE_ACCOUNT + 1, 2)
    more = LOCKS_OF_ALL - LOCKS_OF_ONE_ACCOUNT - 1
    await insert_entries(engine, NOW, more, action="session.locked", target_kind="user", target_id="someone")
    await lock_out(engine, "carol", "192.0.2.1")
    assert await count(engine) == LOCKS_OF_ALL
    await lock_out(engine, None, "192.0.2.1")
    assert await count(engine) == LOCKS_OF_ALL + 1


@pytest.fixture
async def term(database_url: str) -> AsyncIterator[PostgresTerm]:
    held = await campaign(database_url, "leader")
    assert held is not None
    yield held
    await held.resign()


@pytest.fixture
async def leader(
    engine: AsyncEngine, database_url: str, term: PostgresTerm
) -> AsyncIterator[PostgresLeaderDatabase]:
    async with open_pool(database_url, 1, LOCK_TIMEOUT) as pool:
        yield PostgresLeaderDatabase(pool, engine, term.epoch, DAY, BACKENDS)


@pytest.mark.usefixtures("cheap_passwords")
async def test_counted_failures_become_one_entry_when_their_hour_is_over(
    engine: AsyncEngine, leader: PostgresLeaderDatabase
) -> None:
    for number in range(FAILURES_OF_ONE_NETWORK + 7):
        await fail_to_sign_in(engine, f"name{number}", "192.0.2.1")
    over = window_start(NOW) + HOUR
    await leader.record_counted_failures(over - timedelta(seconds=1))
    assert await count(engine) == FAILURES_OF_ONE_NETWORK
    for _ in range(2):
        await leader.record_counted_failures(over)
    added = (await rows(engine))[FAILURES_OF_ONE_NETWORK:]
    since, until = window_start(NOW).isoformat(), over.isoformat()
    assert [(row.action, row.actor_kind, row.actor_name) for row in added] == [
        ("session.failures_counted", "system", "coordinator")
    ]
    assert added[0].details == {"failures": 7, "since": since, "until": until}
    assert await count_failures(engine) == 0


async def test_the_retention_removes_old_entries_in_small_batches(
    engine: AsyncEngine, leader: PostgresLeaderDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader_database, "ROWS_AT_ONCE", 10)
    now = datetime.now(UTC)
    await insert_entries(engine, now - 366 * DAY, 25)
    await insert_entries(engine, now - 364 * DAY, 3)
    removed = [await leader.trim_audit_log(now - 365 * DAY) for _ in range(4)]
    assert removed == [10, 10, 5, 0] and await count(engine) == 3


async def test_a_leader_whose_clock_is_ahead_removes_nothing_of_the_last_day(
    engine: AsyncEngine, leader: PostgresLeaderDatabase
) -> None:
    now = datetime.now(UTC)
    await insert_entries(engine, now - 25 * HOUR)
    await insert_entries(engine, now - 23 * HOUR)
    assert await leader.trim_audit_log(now) == 1
    assert await count(engine) == 1


async def test_a_stale_leader_neither_removes_nor_records(
    engine: AsyncEngine, leader: PostgresLeaderDatabase
) -> None:
    await insert_entries(engine, NOW - 400 * DAY)
    async with engine.begin() as conn:
        await conn.execute(insert(counted_failures).values(window_at=NOW - 5 * HOUR, failures=3))
        await conn.execute(text("UPDATE leadership SET epoch = epoch + 1"))
    with pytest.raises(StaleLeader):
        await leader.trim_audit_log(NOW)
    with pytest.raises(StaleLeader):
        await leader.record_counted_failures(NOW)
    assert await count(engine) == 1 and await count_failures(engine) == 3


async def test_a_state_is_recorded_when_it_changes_and_not_at_every_start(engine: AsyncEngine) -> None:
    async def start(per_user: int) -> None:
        await audit.record_if_changed(
            engine, CLI, Action.LIMITS_CHANGED, LIMITS, NOW, max_running_per_user=per_user
        )

    await asyncio.gather(*(start(2) for _ in range(5)))
    for per_user in (2, 3, 3, 2):
        await start(per_user)
    assert [row.details["max_running_per_user"] for row in await rows(engine)] == [2, 3, 2]
