"""Migrations: up and down, with rows, in parallel, and equal to the tables in the code."""

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
from alembic import command
from alembic.script import ScriptDirectory
from sqlalchemy import RowMapping, insert, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from codehub.database import migrate, schema_version
from codehub.database.engine import create_engine
from codehub.database.tables import (
    archives,
    audit_log,
    counted_failures,
    cpu_holds,
    execs,
    gateways,
    gc_orphans,
    health_checks,
    home_sizes,
    leases,
    login_failures,
    metadata,
    sessions,
    timeline,
    tokens,
    users,
    workspaces,
)
from tests.integration.database.conftest import create
from tests.waiting import PATIENCE

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LATER_TABLES = (
    audit_log,
    counted_failures,
    cpu_holds,
    execs,
    gateways,
    health_checks,
    home_sizes,
    leases,
    tokens,
)
CATALOG = {
    "columns": "SELECT table_name || '.' || column_name, data_type || ' ' || is_nullable || ' '"
    " || coalesce(column_default, '-') || ' ' || is_identity FROM information_schema.columns"
    " WHERE table_schema = 'public' AND table_name <> 'alembic_version'",
    "indexes": "SELECT indexname, indexdef FROM pg_indexes"
    " WHERE schemaname = 'public' AND tablename <> 'alembic_version'",
    "constraints": "SELECT conrelid::regclass || '.' || conname, pg_get_constraintdef(oid) FROM pg_constraint"
    " WHERE connamespace = 'public'::regnamespace AND conrelid::regclass::text <> 'alembic_version'",
    "functions": "SELECT proname, pg_get_functiondef(oid) FROM pg_proc"
    " WHERE pronamespace = 'public'::regnamespace",
    "triggers": "SELECT tgname, pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal",
}
Catalog = dict[str, dict[str, str]]


async def catalog(conn: AsyncConnection) -> Catalog:
    """Return the definitions of everything in the database but rows."""
    return {kind: dict((await conn.execute(text(query))).all()) for kind, query in CATALOG.items()}


async def catalog_of(url: str) -> Catalog:
    engine = create_engine(url)
    async with engine.connect() as conn:
        found = await catalog(conn)
    await engine.dispose()
    return found


async def insert_a_row_of_each(conn: AsyncConnection) -> None:
    await conn.execute(insert(users).values(id="one", username="one", password_hash="x", role="user"))
    workspace = await create(conn)
    # An older schema has no place for it: then the last use counts.
    await conn.execute(text("UPDATE workspaces SET person_access_at = NULL"))
    archive = {"workspace_id": workspace.id, "archive_key": "k", "sha256": "x", "created_at": NOW}
    await conn.execute(insert(archives).values(archive_op_id="a", bytes=1, unpacked=2, entries=3, **archive))
    await conn.execute(insert(sessions).values(id_hash=b"s", user_id="one", expires_at=NOW))
    await conn.execute(insert(login_failures).values(key="k", failures=1, last_failed_at=NOW))
    await conn.execute(insert(gc_orphans).values(key="k", first_seen_at=NOW))
    await conn.execute(text("UPDATE leadership SET epoch = 7"))
    await conn.execute(text("INSERT INTO installation (id, cookie_key) VALUES ('here', 'key')"))
    assert await conn.scalar(select(timeline.c.id)) is not None


async def rows_of(url: str) -> dict[str, list[Mapping[str, Any]]]:
    """Return all rows of the tables that the oldest schema has."""
    engine = create_engine(url)
    async with engine.connect() as conn:
        found = {
            table.name: (await conn.execute(select(table))).mappings().all()
            for table in metadata.sorted_tables
            if table not in LATER_TABLES
        }
    await engine.dispose()
    return {name: [_without_version(row) for row in rows] for name, rows in found.items()}


def _without_version(row: RowMapping) -> Mapping[str, Any]:
    return {name: value for name, value in row.items() if name != "version"}


@pytest.mark.parametrize("revision", ["0001", "0002", "0003", "0004"])
async def test_rows_survive_a_downgrade_and_an_upgrade(database_url: str, revision: str) -> None:
    engine = create_engine(database_url)
    async with engine.begin() as conn:
        await insert_a_row_of_each(conn)
    await engine.dispose()
    schema, before = await catalog_of(database_url), await rows_of(database_url)
    assert all(before.values()), "a table without rows proves nothing"
    await migrate.downgrade(database_url, revision)
    assert await catalog_of(database_url) != schema
    await migrate.upgrade(database_url)
    assert await rows_of(database_url) == before
    assert await catalog_of(database_url) == schema


async def test_a_downgrade_drops_a_restore_that_an_older_codehub_cannot_read(database_url: str) -> None:
    engine = create_engine(database_url)
    async with engine.begin() as conn:
        await insert_a_row_of_each(conn)
        request = {"kind": "restore", "actor": "one", "source": None, "archive_op_id": "a"}
        await conn.execute(update(workspaces).values(request=request))
    await engine.dispose()
    await migrate.downgrade(database_url, "0012")
    engine = create_engine(database_url)
    async with engine.connect() as conn:
        assert list(await conn.scalars(select(workspaces.c.request))) == [None]
        last = await conn.scalar(select(timeline.c.message).order_by(timeline.c.id.desc()).limit(1))
        assert "was dropped" in last
    await engine.dispose()


async def test_all_migrations_can_be_undone_and_repeated(empty_database_url: str) -> None:
    nothing = await catalog_of(empty_database_url)
    await migrate.upgrade(empty_database_url)
    schema = await catalog_of(empty_database_url)
    await migrate.downgrade(empty_database_url, "base")
    assert await catalog_of(empty_database_url) == nothing
    await migrate.upgrade(empty_database_url)
    assert await catalog_of(empty_database_url) == schema


async def test_alembic_sees_no_drift(database_url: str) -> None:
    engine = create_engine(database_url)
    async with engine.begin() as conn:
        await conn.run_sync(migrate._run_alembic, command.check)
    await engine.dispose()


async def test_the_migrations_create_the_tables_in_the_code(
    database_url: str, empty_database_url: str
) -> None:
    """Alembic compares neither predicates of indexes nor check constraints."""
    engine = create_engine(empty_database_url)
    async with engine.begin() as conn:
        await conn.run_sync(metadata.create_all)
        expected = await catalog(conn)
    await engine.dispose()
    migrated = await catalog_of(database_url)
    for kind in ("columns", "indexes", "constraints"):
        assert migrated[kind] == expected[kind]


async def test_several_processes_may_migrate_at_once(empty_database_url: str, database_url: str) -> None:
    async with asyncio.timeout(PATIENCE):
        upgrades = (migrate.upgrade(empty_database_url) for _ in range(5))
        outcomes = await asyncio.gather(*upgrades, return_exceptions=True)
    assert outcomes == [None] * 5
    assert await catalog_of(empty_database_url) == await catalog_of(database_url)


async def test_a_database_of_a_newer_codehub_is_rejected(database_url: str) -> None:
    engine = create_engine(database_url)
    async with engine.begin() as conn:
        await conn.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(schema_version.SchemaError, match=r"newer CodeHub .schema 9999"):
        await migrate.upgrade(database_url)
    with pytest.raises(schema_version.SchemaError, match=r"newer CodeHub .schema 9999"):
        await schema_version.check_schema(engine)
    await engine.dispose()


async def test_the_error_about_an_older_schema_names_the_command(database_url: str) -> None:
    await migrate.downgrade(database_url, "0001")
    engine = create_engine(database_url)
    with pytest.raises(schema_version.SchemaError, match=r"at schema 0001.*codehub migrate"):
        await schema_version.check_schema(engine)
    await engine.dispose()


async def test_the_error_about_an_empty_database_names_the_command(empty_database_url: str) -> None:
    engine = create_engine(empty_database_url)
    with pytest.raises(schema_version.SchemaError, match="codehub migrate"):
        await schema_version.check_schema(engine)
    await engine.dispose()


def test_the_revisions_without_alembic_are_those_of_alembic() -> None:
    scripts = ScriptDirectory.from_config(migrate.make_config())
    assert schema_version.known_revisions() == sorted(script.revision for script in scripts.walk_revisions())
    assert schema_version.head_revision() == scripts.get_current_head()
