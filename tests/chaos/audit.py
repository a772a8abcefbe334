"""Audit log of every write, which database triggers fill, and the rules that it must satisfy."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from codehub.domain.archive_keys import archive_key

AUDITED = ("workspaces", "timeline", "archives", "gc_orphans")

STATEMENTS = (
    """
    CREATE TABLE audit_terms (
        epoch bigint PRIMARY KEY, db_role text NOT NULL, at timestamptz NOT NULL DEFAULT clock_timestamp()
    )
    """,
    """
    CREATE TABLE audit_writes (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        at timestamptz NOT NULL DEFAULT clock_timestamp(),
        txid bigint NOT NULL, db_role text NOT NULL, epoch bigint NOT NULL, fenced boolean NOT NULL,
        table_name text NOT NULL, old_row jsonb, new_row jsonb
    )
    """,
    """
    CREATE FUNCTION audit_term() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO audit_terms (epoch, db_role) VALUES (NEW.epoch, session_user);
        RETURN NULL;
    END $$
    """,
    # SELECT ... FOR SHARE leaves this lock on the table until the transaction ends.
    """
    CREATE FUNCTION audit_write() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO audit_writes (txid, db_role, epoch, fenced, table_name, old_row, new_row)
        SELECT txid_current(), session_user, leadership.epoch,
            EXISTS (SELECT FROM pg_locks WHERE pid = pg_backend_pid() AND granted
                    AND relation = 'leadership'::regclass AND mode = 'RowShareLock'),
            TG_TABLE_NAME, to_jsonb(OLD), to_jsonb(NEW)
        FROM leadership;
        RETURN NULL;
    END $$
    """,
    # A standby coordinator is visible only in the short moments in which it tries to become leader.
    """
    CREATE FUNCTION audit_campaigns(candidate text) RETURNS boolean LANGUAGE plpgsql AS $$
    BEGIN
        FOR attempt IN 1..200 LOOP
            PERFORM pg_stat_clear_snapshot();
            IF EXISTS (SELECT FROM pg_stat_activity
                       WHERE usename = candidate AND query ILIKE '%pg_try_advisory_lock%') THEN
                RETURN true;
            END IF;
            PERFORM pg_sleep(0.003);
        END LOOP;
        RETURN false;
    END $$
    """,
    "CREATE TRIGGER audit_term AFTER UPDATE ON leadership FOR EACH ROW "
    "WHEN (OLD.epoch IS DISTINCT FROM NEW.epoch) EXECUTE FUNCTION audit_term()",
    # Deferred to the commit, so that it catches a transaction that outlives its leader's epoch.
    *(
        f"CREATE CONSTRAINT TRIGGER audit_write AFTER INSERT OR UPDATE OR DELETE ON {table} "
        "DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION audit_write()"
        for table in AUDITED
    ),
)


async def install(conn: AsyncConnection) -> None:
    for statement in STATEMENTS:
        await conn.execute(text(statement))


@dataclass(frozen=True)
class Write:
    """One audited write, with the role that made it and the epoch in which it committed."""

    id: int
    txid: int
    db_role: str
    epoch: int
    fenced: bool
    table_name: str
    old_row: dict[str, Any] | None
    new_row: dict[str, Any] | None


@dataclass(frozen=True)
class Operation:
    """One operation from its claim to its end, as the rows show it."""

    workspace_id: str
    operation: str
    op_id: str
    archive_op_id: str | None
    claimed: Write
    ended: Write | None = None


async def last_write(conn: AsyncConnection) -> int:
    newest: int = await conn.scalar(text("SELECT coalesce(max(id), 0) FROM audit_writes"))
    return newest


async def writes_since(conn: AsyncConnection, bookmark: int) -> list[Write]:
    columns = "id, txid, db_role, epoch, fenced, table_name, old_row, new_row"
    query = f"SELECT {columns} FROM audit_writes WHERE id > :id ORDER BY id"
    rows = await conn.execute(text(query), {"id": bookmark})
    return [Write(**row) for row in rows.mappings()]


async def terms(conn: AsyncConnection) -> dict[int, str]:
    """Return the role of the leader of each epoch."""
    rows = await conn.execute(text("SELECT epoch, db_role FROM audit_terms"))
    return {row.epoch: row.db_role for row in rows}


def check_fencing(writes: Iterable[Write], terms: dict[int, str], coordinators: set[str]) -> None:
    """Check that each write of a coordinator was fenced and committed in one of its own epochs."""
    for write in writes:
        if write.db_role in coordinators:
            assert write.fenced, f"written without the fence: {write}"
            assert terms[write.epoch] == write.db_role, f"written by a stale leader: {write}\n{terms}"


def check_single_writer(writes: Iterable[Write], coordinators: set[str]) -> None:
    """Check that only coordinators change operations, during which desired_state is fixed."""
    for write in writes:
        if write.table_name != "workspaces" or write.old_row is None or write.new_row is None:
            continue
        moved = write.old_row["op_id"] != write.new_row["op_id"]
        assert not moved or write.db_role in coordinators, write
        if write.old_row["operation"] != "NONE":
            assert write.old_row["desired_state"] == write.new_row["desired_state"], write


def operations(writes: Iterable[Write]) -> list[Operation]:
    """Return every operation; fail unless each went NONE -> operation -> NONE exactly once."""
    under_way: dict[str, Operation] = {}
    done: list[Operation] = []
    for write in writes:
        if write.table_name != "workspaces" or write.old_row is None or write.new_row is None:
            continue
        old, new = write.old_row, write.new_row
        if old["op_id"] == new["op_id"]:
            assert old["operation"] == new["operation"], f"changed under its op_id: {write}"
            continue
        if old["op_id"] is None:
            assert old["id"] not in under_way, f"claimed twice: {write}"
            under_way[old["id"]] = _claimed(write, new)
        else:
            assert new["op_id"] is None, f"claimed over another operation: {write}"
            claim = under_way.pop(old["id"])
            assert claim.op_id == old["op_id"], write
            done.append(Operation(**{**vars(claim), "ended": write}))
    assert not under_way, f"claimed and never ended: {list(under_way.values())}"
    repeated = [op_id for op_id, count in Counter(operation.op_id for operation in done).items() if count > 1]
    assert not repeated, f"claimed more than once: {repeated}"
    return done


def _claimed(write: Write, row: dict[str, Any]) -> Operation:
    archives = row["operation"] in ("ARCHIVING", "CREATE_EMPTY_ARCHIVE")
    archive_op_id = row["archive_op_id"] if archives else None
    return Operation(row["id"], row["operation"], row["op_id"], archive_op_id, write)


def check_archiving(operations: Iterable[Operation]) -> None:
    """Check that each archive has its own archive_op_id, with which its operation ends."""
    made = [operation for operation in operations if operation.archive_op_id is not None]
    assert len({operation.archive_op_id for operation in made}) == len(made)
    for operation in made:
        assert operation.ended is not None and operation.ended.new_row is not None
        assert operation.ended.new_row["archive_key"] == archive_key(
            operation.workspace_id, operation.archive_op_id or ""
        )


def check_timeline(writes: list[Write], operations: Iterable[Operation]) -> None:
    """Check that each claim and each end has one entry, in its transaction, and nothing failed."""
    entries = [
        write.new_row | {"txid": write.txid}
        for write in writes
        if write.table_name == "timeline" and write.new_row
    ]
    events = Counter(event["event"] for event in entries if event["actor"] == "controller")
    assert set(events) <= {"claimed", "finished", "archived"}, [
        event
        for event in entries
        if event["event"] not in ("claimed", "finished", "archived", "requested", "created")
    ]
    expected = Counter[tuple[int, str, str, str]]()
    for operation in operations:
        assert operation.ended is not None
        expected[(operation.claimed.txid, operation.workspace_id, "claimed", operation.operation)] += 1
        expected[(operation.ended.txid, operation.workspace_id, "finished", operation.operation)] += 1
    found = Counter(
        (event["txid"], event["workspace_id"], event["event"], event["operation"])
        for event in entries
        if event["event"] in ("claimed", "finished")
    )
    assert found == expected, (found - expected, expected - found)
