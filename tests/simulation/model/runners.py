"""The steps of `coordinator/ttl_runner.py` and `coordinator/gc_runner.py`.

There is one of each at a time: a stale leader's runner ends before the next leader's begins.
"""

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from codehub.domain import gc as archives
from codehub.domain import ttl as deadlines
from codehub.domain import volume_leftovers
from codehub.domain.archive_keys import archive_op_id_of
from codehub.domain.awake import Command, CpuHold, Holds, Lease, awake_at
from codehub.domain.gc import ArchiveHolder, GcRules
from codehub.domain.states import Operation, Phase
from codehub.domain.ttl import TtlDefaults
from codehub.domain.volume_leftovers import Leftover
from codehub.domain.workspace import Workspace
from tests.simulation.model import contracts
from tests.simulation.model.effects import job_order
from tests.simulation.model.engine import Step, rule, step
from tests.simulation.model.row_conversion import (
    A_MOMENT_AGO,
    LONG_AGO,
    arc_name,
    arc_of,
    key_name,
    marker_of,
    to_workspace,
)
from tests.simulation.model.state_parts import (
    Activity,
    Arc,
    Disk,
    Expected,
    Gc,
    Job,
    Leader,
    Row,
    Stamp,
    Store,
    Ttl,
    TtlSnapshot,
)
from tests.simulation.model.storage import ASIDE, STAGING
from tests.unit.domain.builders import ID, NOW

DEFAULTS = TtlDefaults(standby=600, archive=1800, max_awake=259_200)
CPU = CpuHold(90, 50, LONG_AGO, NOW)
LEASE = Lease("l1", ID, "u1", "ci", "a build", LONG_AGO, NOW + timedelta(hours=1))
YESTERDAY = NOW - timedelta(days=1)
SILENCE = timedelta(minutes=1)
RULES = GcRules(orphan_grace=timedelta(hours=2), retention=timedelta(days=7))
_SEEN_AT = (A_MOMENT_AGO, NOW - timedelta(hours=3), LONG_AGO)
_HOME_KEY = f"users/01us/workspaces/{ID}/home"


def is_stale(epoch: int, lead: Leader) -> bool:
    """`leadership.fence`, for the runners."""
    return epoch != lead.epoch


@rule("ttl activity lead", needs="ttl")
def ttl_reads(ttl: Ttl, activity: Activity, lead: Leader) -> Iterator[Step]:
    """Read the heartbeats before the activity, which then contains every use that they cover."""
    if ttl.at not in ("idle", "begun"):
        return
    first, second = reading()
    label, after = (first if ttl.at == "idle" else second)(ttl, activity)
    if ttl.at == "idle":
        yield step(f"ttl: reads {label}", "ttl", ttl=after._replace(epoch=lead.epoch, at="begun"))
    else:
        at = "ready" if after.read is None else "read"
        yield step(f"ttl: reads {label}", ttl=after._replace(at=at))


def read_heartbeats(ttl: Ttl, activity: Activity) -> tuple[str, Ttl]:
    reported = Stamp(max(activity.person, activity.redis or 0))
    return "the heartbeats", ttl._replace(recent_report=activity.recent_report, reported=reported)


def read_activity(ttl: Ttl, activity: Activity) -> tuple[str, Ttl]:
    return "the activity", ttl._replace(read=activity.redis)


def reading() -> tuple[Any, Any]:
    return read_heartbeats, read_activity


@rule("ttl activity lead", needs="ttl")
def ttl_carries(ttl: Ttl, activity: Activity, lead: Leader) -> Iterator[Step]:
    """Commit the activity, and only then remove it from Redis."""
    if ttl.at not in ("read", "carried") or ttl.read is None:
        return
    first, second = carrying()
    call = first if ttl.at == "read" else second
    if call is commit and is_stale(ttl.epoch, lead):
        yield step("ttl: may not carry the activity over", ttl=Ttl())
        return
    label, after = call(activity, ttl.read)
    broken = "last_access_at only moves forward" if after.last_access < activity.last_access else None
    at = "carried" if ttl.at == "read" else "ready"
    yield step(f"ttl: {label}", None, broken, activity=after, ttl=ttl._replace(at=at))


def commit(activity: Activity, read: int) -> tuple[str, Activity]:
    """`gate.advance_last_access`."""
    last, person = max(activity.last_access, read), max(activity.person, read)
    return "carries the activity over", activity._replace(last_access=last, person=person)


def remove(activity: Activity, read: int) -> tuple[str, Activity]:
    """`bus.activity.remove`: a score that has grown since the read is newer, and stays."""
    gone = activity.redis is not None and activity.redis <= read
    return "removes it from Redis", activity._replace(redis=None) if gone else activity


def carrying() -> tuple[object, object]:
    return commit, remove


@rule("ttl row activity", needs="ttl")
def ttl_decides(ttl: Ttl, row: Row, activity: Activity) -> Iterator[Step]:
    if ttl.at != "ready":
        return
    workspace = with_activity(row, activity)
    silence = timedelta(0) if ttl.recent_report else 2 * SILENCE
    known_until = deadlines.known_until([silence], NOW, SILENCE)
    awake = awake_at(holds_of(activity), NOW)
    expiry = deadlines.expired(workspace, DEFAULTS, NOW, known_until, awake)
    if expiry is None:
        broken = contracts.check_no_expiry(ttl, row, activity)
        yield step("ttl: nothing has expired", None, broken, ttl=Ttl())
        return
    seen = TtlSnapshot(
        row.desired,
        row.phase,
        row.operation,
        row.deleted > 0,
        row.request,
        activity.last_access,
        activity.held,
        expiry.desired,
    )
    broken = contracts.check_expiry(ttl, expiry.desired, row, activity)
    after = Ttl(ttl.epoch, "seen", seen=seen)
    yield step(f"ttl: {expiry.desired} is due", None, broken, ttl=after)


def with_activity(row: Row, activity: Activity) -> Workspace:
    """Return the workspace with the times of its uses and holds."""

    def at(moment: Stamp) -> datetime:
        return LONG_AGO if activity.idle is not None and moment <= activity.idle else NOW

    return replace(
        to_workspace(row),
        last_access_at=at(activity.last_access),
        person_access_at=LONG_AGO if activity.is_without_person else YESTERDAY,
        holds_changed_at=at(activity.held),
    )


def holds_of(activity: Activity) -> Holds:
    """`holds.read_holds`: a command and CPU use that were just seen, and a lease that has not expired."""
    commands = (Command(LONG_AGO, NOW),) if activity.command else ()
    return Holds(commands, (LEASE,) if activity.lease else (), CPU if activity.cpu else None)


@rule("ttl row activity lead", commits=True, needs="ttl")
def ttl_expires(ttl: Ttl, row: Row, activity: Activity, lead: Leader) -> Iterator[Step]:
    if ttl.at != "seen" or ttl.seen is None:
        return
    if is_stale(ttl.epoch, lead) or not nothing_has_changed(ttl.seen, row, activity):
        yield step("ttl: something has changed, or another coordinator leads", ttl=Ttl())
        return
    broken = contracts.check_late_expiry(ttl.seen, row, activity)
    label = f"ttl: requests {ttl.seen.expiry}"
    yield step(label, None, broken, row=row._replace(desired=ttl.seen.expiry), ttl=Ttl())


def nothing_has_changed(seen: TtlSnapshot, row: Row, activity: Activity) -> bool:
    """`gate.apply_expiry`."""
    now = (row.desired, row.phase, row.operation, row.deleted > 0, row.request, activity.last_access)
    return (*now, activity.held) == seen[:7] and not seen.moved


@rule("row gc", commits=True, needs="gc")
def gc_purges(row: Row, gc: Gc) -> Iterator[Step]:
    """Commit purged_at before anything is removed."""
    over = row.deleted == 2 or row.waived
    ends = over and row.phase is Phase.DELETED and row.operation is Operation.NONE
    if gc.at == "idle" and ends and not row.purged and not gc.empty_database:
        yield step("gc: purges the workspace", row=row._replace(purged=True))


@rule("gc", needs="empty_database")
def database_is_lost(gc: Gc) -> Iterator[Step]:
    if not gc.empty_database and gc.at == "idle":
        label = "the GC runner reads an empty database"
        yield step(label, "empty_database", gc=gc._replace(empty_database=True, orphans=(), remains=()))


@rule("gc store disk lead", needs="gc")
def gc_lists(gc: Gc, store: Store, disk: Disk, lead: Leader) -> Iterator[Step]:
    """List the store before the database is read."""
    if gc.at != "idle":
        return
    beside = [f"{ASIDE}{number}" for number in range(1, len(disk.asides) + 1)]
    beside += [STAGING] if disk.staging is not None else []
    beside += [volume_leftovers.HOME] if disk.home is not None else []
    listed = tuple(item.arc for item in store.archives)
    if listed or beside:
        made = gc._replace(epoch=lead.epoch, at="listed", listed=listed, leftovers=tuple(beside))
        yield step("gc: lists the store and the homes", "gc", gc=made)


def holders(row: Row, store: Store, empty_database: bool) -> dict[str, ArchiveHolder]:
    """`gc_queries.archive_holders`."""
    if empty_database:
        return {}
    kept = frozenset(key_name(item.arc) or "" for item in store.records if item.kept)
    workspace = to_workspace(row)
    return {
        ID: ArchiveHolder(
            workspace.archive_key, workspace.archive_op_id, row.phase, workspace.deleted_at,
            workspace.purged_at, kept, grace_waived=row.waived, requested=requested_archive(row),
            recorded=frozenset(key_name(item.arc) or "" for item in store.records if not item.removed),
        )
    }  # fmt: skip


def requested_archive(row: Row) -> str | None:
    return None if row.request is None else arc_name(row.request.arc)


def _stored(arc: Arc) -> archives.StoredArchive:
    return archives.StoredArchive(key_name(arc) or "", ID, arc_name(arc) or "", 1, complete=True)


@rule("gc row store disk lead", needs="gc")
def gc_selects(gc: Gc, row: Row, store: Store, disk: Disk, lead: Leader) -> Iterator[Step]:
    if gc.at != "listed":
        return
    if is_stale(gc.epoch, lead):
        yield step("gc: may not select", gc=idle_gc(gc))
        return
    known = holders(row, store, gc.empty_database)
    seen = {key_name(arc) or "": _SEEN_AT[age] for arc, age in gc.orphans}
    listed = {name: Leftover(_HOME_KEY, ID, name, marker_of(disk.marker)) for name in gc.leftovers}
    seen |= {listed[name].key: _SEEN_AT[age] for name, age in gc.remains if name in listed}
    rules = replace(RULES, archives_kept=gc.archives_kept)
    found = archives.select_archives_to_remove([_stored(arc) for arc in gc.listed], known, seen, rules, NOW)
    cleared = volume_leftovers.select_leftovers_to_remove(list(listed.values()), known, seen, RULES, NOW)
    after = gc._replace(
        at="due",
        orphans=tuple((arc, _age(found.first_seen[key])) for arc in gc.listed
                      for key in (key_name(arc),) if key in found.first_seen),
        remains=tuple((name, _age(cleared.first_seen[item.key])) for name, item in listed.items()
                      if item.key in cleared.first_seen),
        due=tuple(arc for item in found.remove for arc in (arc_of(archive_op_id_of(item.key)),) if arc),
        clear=tuple(item.name for item in cleared.remove),
    )  # fmt: skip
    alarmed = found.alarm is not None or cleared.alarm is not None
    nothing = not after.due and not after.clear
    label = (
        found.alarm or cleared.alarm or f"gc: {len(after.due)} archives, {len(after.clear)} leftovers are due"
    )
    if alarmed:
        # In doubt, no time counts: every grace restarts after an alarm.
        after = after._replace(orphans=(), remains=())
    yield step(label, gc=idle_gc(after) if alarmed or nothing else after)


def _age(first_seen: datetime) -> int:
    return {NOW: 0, **{at: age for age, at in enumerate(_SEEN_AT)}}[first_seen]


def idle_gc(gc: Gc) -> Gc:
    kept = gc.archives_kept
    return Gc(orphans=gc.orphans, remains=gc.remains, empty_database=gc.empty_database, archives_kept=kept)


@rule("gc jobs disk row lead", needs="gc")
def gc_clears(gc: Gc, jobs: tuple[Job, ...], disk: Disk, row: Row, lead: Leader) -> Iterator[Step]:
    """Start one job per workspace and cycle."""
    if gc.at != "due" or not gc.clear:
        return
    home = volume_leftovers.HOME in gc.clear
    kind = "purge" if home else "clear"
    job = Job(None, 0, kind, disk.marker if home else None, None, gc.epoch, names=() if home else gc.clear)
    after = gc._replace(clear=())
    after = after if after.due else idle_gc(after)
    if any(item.name == job.name for item in jobs):
        yield step("gc: its job already exists", gc=after)
        return
    broken = contracts.check_clearing(gc, row)
    label = f"gc: starts the job {kind} of {', '.join(gc.clear)}"
    yield step(label, None, broken, jobs=tuple(sorted((*jobs, job), key=job_order)), gc=after)


@rule("gc row store expected lead", needs="gc")
def gc_checks_again(gc: Gc, row: Row, store: Store, expected: Expected, lead: Leader) -> Iterator[Step]:
    """Check again with the row locked, and commit: then nothing can choose the archive."""
    if gc.at != "due" or gc.clear or not gc.due:
        return
    if is_stale(gc.epoch, lead):
        yield step("gc: may not remove", gc=idle_gc(gc))
        return
    arc = gc.due[0]
    present = frozenset(key_name(item) or "" for item in gc.listed)
    holder = holders(row, store, gc.empty_database).get(ID)
    reason = archives.protection(_stored(arc), holder, present, gc.archives_kept)
    if reason is not None:
        left = gc._replace(due=gc.due[1:])
        yield step(f"gc: ar{arc} stays: {reason}", gc=left if left.due else idle_gc(left))
        return
    records = tuple(item._replace(removed=True) if item.arc == arc else item for item in store.records)
    broken = contracts.check_removal(arc, gc, row, store)
    marked = store if gc.empty_database else store._replace(records=records)
    yield step(f"gc: ar{arc} may go", None, broken, gc=gc._replace(at="checked"), store=marked)


@rule("gc store row expected", needs="gc")
def gc_removes(gc: Gc, store: Store, row: Row, expected: Expected) -> Iterator[Step]:
    """Remove the `.meta` first: after a crash in between, the archive counts as incomplete."""
    if gc.at != "checked":
        return
    arc = gc.due[0]
    left = gc._replace(at="due", due=gc.due[1:])
    left = left if left.due else idle_gc(left)
    broken = contracts.check_late_removal(arc, row)
    yield step(f"gc: removes ar{arc}", None, broken, gc=left, store=store.without(arc))
    found = store.find(arc)
    if found is not None and found.complete:
        half = store.put(found._replace(complete=False))
        yield step(f"gc: removes the .meta of ar{arc}, and fails", "fault", gc=left, store=half)
