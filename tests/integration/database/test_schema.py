"""Constraints and triggers of the schema."""

import asyncio
import json

import asyncpg
import pytest
from sqlalchemy import select, text, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine

from codehub.database.engine import asyncpg_dsn
from codehub.database.tables import sessions, users, workspaces
from tests.integration.database.conftest import create
from tests.waiting import PATIENCE

FORBIDDEN = {
    "ERROR with an operation": {
        "phase": "ERROR", "operation": "STARTING", "op_id": "x", "op_started_at": text("now()")
    },
    "an operation without op_id": {"operation": "STARTING", "op_started_at": text("now()")},
    "op_id without an operation": {"op_id": "x"},
    "ARCHIVING without archive_op_id": {
        "operation": "ARCHIVING", "op_id": "x", "op_started_at": text("now()")
    },
    "DELETED without deleted_at": {"desired_state": "DELETED"},
    "deleted_at without DELETED": {"deleted_at": text("now()")},
    "purged but not deleted": {"purged_at": text("now()")},
    "an unknown phase": {"phase": "SLEEPING"},
    "an unknown operation": {"operation": "DREAMING"},
    "an unknown reason": {"error_reason": "BadLuck"},
    "a negative error_count": {"error_count": -1},
    "a negative TTL": {"standby_ttl_seconds": -1},
    "a negative CPU use": {"awake_cpu_percent": -1},
    "an upstream of another form": {"upstream": "http://elsewhere"},
}  # fmt: skip


@pytest.mark.parametrize("values", FORBIDDEN.values(), ids=FORBIDDEN.keys())
async def test_an_invalid_state_cannot_be_stored(engine: AsyncEngine, values: dict[str, object]) -> None:
    async with engine.begin() as conn:
        workspace = await create(conn)
    with pytest.raises(IntegrityError):
        async with engine.begin() as conn:
            await conn.execute(update(workspaces).where(workspaces.c.id == workspace.id).values(**values))


async def test_a_username_is_unique_among_users_that_are_not_deleted(engine: AsyncEngine) -> None:
    same_name = users.insert().values(id="three", username="one", password_hash="x", role="user")
    with pytest.raises(IntegrityError):
        async with engine.begin() as conn:
            await conn.execute(same_name)
    async with engine.begin() as conn:
        await conn.execute(update(users).where(users.c.id == "one").values(deleted_at=text("now()")))
        await conn.execute(same_name)


async def test_every_change_sends_notifications_with_ids_only(engine: AsyncEngine, database_url: str) -> None:
    notifications: asyncio.Queue[tuple[str, dict[str, str]]] = asyncio.Queue()
    listener = await asyncpg.connect(asyncpg_dsn(database_url))
    for channel in (
        "ws_sse",
        "ws_wake",
        "ws_deleted",
        "route_changed",
        "session_ended",
        "user_changed",
        "end",
    ):
        await listener.add_listener(
            channel, lambda _c, _p, name, payload: notifications.put_nowait((name, json.loads(payload)))
        )

    async def received() -> set[str]:
        """Return the channels of the notifications so far, which arrive in the order of commits."""
        async with engine.begin() as conn:
            await conn.execute(text("SELECT pg_notify('end', '{}')"))
        names = set()
        async with asyncio.timeout(PATIENCE):
            while (name := (await notifications.get())[0]) != "end":
                names.add(name)
        return names

    async with engine.begin() as conn:
        workspace = await create(conn)
    assert await received() == {"ws_sse", "ws_wake", "route_changed"}
    row = workspaces.c.id == workspace.id
    for values, expected in (
        ({"memo": "note"}, {"ws_sse"}),
        ({"desired_state": "RUNNING"}, {"ws_sse", "ws_wake"}),
        ({"request": {"kind": "cancel", "actor": "one"}}, {"ws_wake"}),
        ({"phase": "STANDBY"}, {"ws_sse", "route_changed"}),
        ({"upstream": "unix:/x"}, {"route_changed"}),
        ({"observed_at": text("now()")}, set()),
        (
            {"desired_state": "DELETED", "deleted_at": text("now()")},
            {"ws_sse", "ws_wake", "ws_deleted", "route_changed"},
        ),
    ):
        async with engine.begin() as conn:
            await conn.execute(update(workspaces).where(row).values(**values))
        assert await received() == expected, values
    async with engine.begin() as conn:
        await conn.execute(sessions.insert().values(id_hash=b"s", user_id="one", expires_at=text("now()")))
        await conn.execute(sessions.delete())
        await conn.execute(update(users).where(users.c.id == "one").values(role="admin"))
    assert await received() == {"session_ended", "user_changed"}
    await listener.close()


async def test_every_update_increments_the_version_which_cannot_be_set(engine: AsyncEngine) -> None:
    async with engine.begin() as conn:
        workspace = await create(conn)
        assert workspace.version == 0
        other = await create(conn)
        query = select(workspaces.c.version).where(workspaces.c.id == workspace.id)
        writing = update(workspaces).where(workspaces.c.id == workspace.id)
        for number, values in enumerate(({"memo": "note"}, {"memo": "note"}, {"version": 40}), start=1):
            await conn.execute(writing.values(**values))
            assert await conn.scalar(query) == number
        assert await conn.scalar(select(workspaces.c.version).where(workspaces.c.id == other.id)) == 0
