"""What the database itself logs of every write: who, in which epoch, fenced or not; and what it must show."""

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
    CREATE TABLE audit_reigns (
        epoch bigint PRIMARY KEY, who text NOT NULL, at timestamptz NOT NULL DEFAULT clock_timestamp()
    )
    """,
    """
    CREATE TABLE audit_writes (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        at timestamptz NOT NULL DEFAULT clock_timestamp(),
        txid bigint NOT NULL, who text NOT NULL, epoch bigint NOT NULL, fenced boolean NOT NULL,
        place text NOT NULL, was jsonb, became jsonb
    )
    """,
    """
    CREATE FUNCTION audit_reign() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO audit_reigns (epoch, who) VALUES (NEW.epoch, session_user);
        RETURN NULL;
    END $$
    """,
    # SELECT ... FOR SHARE leaves this lock on the table until the transaction ends.
    """
    CREATE FUNCTION audit_write() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO audit_writes (txid, who, epoch, fenced, place, was, became)
        SELECT txid_current(), session_user, leadership.epoch,
            EXISTS (SELECT FROM pg_locks WHERE pid = pg_backend_pid() AND granted
                    AND relation = 'leadership'::regclass AND mode = 'RowShareLock'),
            TG_TABLE_NAME, to_jsonb(OLD), to_jsonb(NEW)
        FROM leadership;
        RETURN NULL;
    END $$
    """,
    # Who stands by shows only in the moments in which it tries to take office, which are few and short.
    """
    CREATE FUNCTION audit_campaigns(who text) RETURNS boolean LANGUAGE plpgsql AS $$
    BEGIN
        FOR look IN 1..200 LOOP
            PERFORM pg_stat_clear_snapshot();
            IF EXISTS (SELECT FROM pg_stat_activity
                       WHERE usename = who AND query ILIKE '%pg_try_advisory_lock%') THEN
                RETURN true;
            END IF;
            PERFORM pg_sleep(0.003);
        END LOOP;
        RETURN false;
    END $$
    """,
    "CREATE TRIGGER audit_reign AFTER UPDATE ON leadership FOR EACH ROW "
    "WHEN (OLD.epoch IS DISTINCT FROM NEW.epoch) EXECUTE FUNCTION audit_reign()",
    # Deferred to the commit: a transaction that outlives its leader's epoch is caught, too.
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
    id: int
    txid: int
    who: str
    epoch: int
    fenced: bool
    place: str
    was: dict[str, Any] | None
    became: dict[str, Any] | None


@dataclass(frozen=True)
class Operation:
    """One operation from its claim to its end, as the rows tell it."""

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
    query = "SELECT id, txid, who, epoch, fenced, place, was, became FROM audit_writes WHERE id > :id"
    rows = await conn.execute(text(f"{query} ORDER BY id"), {"id": bookmark})
    return [Write(**row) for row in rows.mappings()]


async def reigns(conn: AsyncConnection) -> dict[int, str]:
    """Epoch -> whose it is."""
    rows = await conn.execute(text("SELECT epoch, who FROM audit_reigns"))
    return {row.epoch: row.who for row in rows}


def check_office(writes: Iterable[Write], reigns: dict[int, str], coordinators: set[str]) -> None:
    """Each write of a coordinator was fenced, and committed in an epoch of its own."""
    for write in writes:
        if write.who in coordinators:
            assert write.fenced, f"written without the fence: {write}"
            assert reigns[write.epoch] == write.who, f"written by a stale leader: {write}\n{reigns}"


def check_single_writer(writes: Iterable[Write], coordinators: set[str]) -> None:
    """Only the coordinators touch operations; and nobody moves a wish under an operation."""
    for write in writes:
        if write.place != "workspaces" or write.was is None or write.became is None:
            continue
        moved = write.was["op_id"] != write.became["op_id"]
        assert not moved or write.who in coordinators, write
        if write.was["operation"] != "NONE":
            assert write.was["desired_state"] == write.became["desired_state"], write


def operations(writes: Iterable[Write]) -> list[Operation]:
    """Every operation; fails unless each went NONE -> operation -> NONE exactly once."""
    under_way: dict[str, Operation] = {}
    done: list[Operation] = []
    for write in writes:
        if write.place != "workspaces" or write.was is None or write.became is None:
            continue
        was, became = write.was, write.became
        if was["op_id"] == became["op_id"]:
            assert was["operation"] == became["operation"], f"changed under its op_id: {write}"
            continue
        if was["op_id"] is None:
            assert was["id"] not in under_way, f"claimed twice: {write}"
            under_way[was["id"]] = _claimed(write, became)
        else:
            assert became["op_id"] is None, f"claimed over another operation: {write}"
            claim = under_way.pop(was["id"])
            assert claim.op_id == was["op_id"], write
            done.append(Operation(**{**vars(claim), "ended": write}))
    assert not under_way, f"claimed and never ended: {list(under_way.values())}"
    repeated = [op_id for op_id, count in Counter(one.op_id for one in done).items() if count > 1]
    assert not repeated, f"claimed more than once: {repeated}"
    return done


def _claimed(write: Write, row: dict[str, Any]) -> Operation:
    archives = row["operation"] in ("ARCHIVING", "CREATE_EMPTY_ARCHIVE")
    archive_op_id = row["archive_op_id"] if archives else None
    return Operation(row["id"], row["operation"], row["op_id"], archive_op_id, write)


def check_archiving(operations: Iterable[Operation]) -> None:
    """Each archive has an archive_op_id of its own, which its operation ends with."""
    made = [one for one in operations if one.archive_op_id is not None]
    assert len({one.archive_op_id for one in made}) == len(made)
    for one in made:
        assert one.ended is not None and one.ended.became is not None
        assert one.ended.became["archive_key"] == archive_key(one.workspace_id, one.archive_op_id or "")


def check_timeline(writes: list[Write], operations: Iterable[Operation]) -> None:
    """Each claim and each end is told once, in the transaction that made it true; and nothing failed."""
    told = [
        write.became | {"txid": write.txid} for write in writes if write.place == "timeline" and write.became
    ]
    events = Counter(event["event"] for event in told if event["actor"] == "controller")
    assert set(events) <= {"claimed", "finished", "archived"}, [
        event
        for event in told
        if event["event"] not in ("claimed", "finished", "archived", "wish", "created")
    ]
    expected = Counter[tuple[int, str, str, str]]()
    for one in operations:
        assert one.ended is not None
        expected[(one.claimed.txid, one.workspace_id, "claimed", one.operation)] += 1
        expected[(one.ended.txid, one.workspace_id, "finished", one.operation)] += 1
    found = Counter(
        (event["txid"], event["workspace_id"], event["event"], event["operation"])
        for event in told
        if event["event"] in ("claimed", "finished")
    )
    assert found == expected, (found - expected, expected - found)
