"""GC with a real database, on a directory and on an S3 server: what is removed, and when."""

from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path

import pytest
import structlog
from sqlalchemy import insert, text
from sqlalchemy.exc import DBAPIError

from codehub.database.tables import archives
from codehub.domain.archive_keys import archive_key
from codehub.domain.observation import JobState
from codehub.storage.archive.async_archive_store import ArchiveStore
from codehub.storage.archive.open_object_store import open_object_store
from codehub.storage.errors import StoreTrouble
from codehub.storage.jobs.spec import ArchiveJob, DeleteJob, RestoreJob
from tests.faulty_proxy import Fault, FaultyProxy
from tests.integration.coordinator.conftest import INSTALLATION, new_stack
from tests.integration.storage.gc_fixture import CONTENT, GENERATION, HOUR, NOW, SHA, WHOLE, GcFixture
from tests.s3 import S3Server, use

ON_S3 = pytest.mark.parametrize("gc", ["s3"], indirect=True)
IN_A_DIRECTORY = pytest.mark.parametrize("gc", ["directory"], indirect=True)


@pytest.fixture(params=["directory", "s3"])
async def gc(request: pytest.FixtureRequest, database_url: str, redis_url: str) -> AsyncIterator[GcFixture]:
    async with new_stack(database_url, redis_url) as stack:
        if request.param == "directory":
            yield GcFixture(stack, f"file://{stack.settings.data_dir}/archives", None)
            return
        url: str = request.getfixturevalue("s3_url")
        server: S3Server = request.getfixturevalue("s3_server")
        with FaultyProxy.in_front_of(server.endpoint) as proxy:
            use(server.environment(proxy.endpoint), request.getfixturevalue("monkeypatch"))
            await ArchiveStore(url, INSTALLATION).initialise()
            yield GcFixture(stack, url, proxy)


async def test_orphans_are_removed_after_their_grace_and_the_rest_stays(gc: GcFixture) -> None:
    living = await gc.archived("a5")
    stays = {
        "the archive of its workspace": archive_key(living, "a5"),
        "newer than the archive of its workspace": gc.put(living, "a6"),
    }
    replaced = {gc.put(living, "a4"), gc.put(living, "a3", meta=False)}

    busy = await gc.archived("a1", archive_op_id="a2")
    stays["of the archive operation under way"] = gc.put(busy, "a2", meta=False)
    stays["the archive it will replace"] = archive_key(busy, "a1")

    broken = await gc.archived("a2", phase="ERROR", error_reason="Timeout")
    stays["of a workspace in ERROR"] = archive_key(broken, "a2")
    stays["older, of a workspace in ERROR"] = gc.put(broken, "a1")

    recovered = await gc.archived("a2")
    stays["of a recovered workspace"] = archive_key(recovered, "a2")
    stays["left behind by a recovery, in its grace"] = kept = gc.put(recovered, "a1")
    async with gc.stack.engine.begin() as conn:
        left = {"workspace_id": recovered, "archive_op_id": "a1", "archive_key": kept, "sha256": SHA}
        sizes = {"bytes": 1, "unpacked": 1, "entries": 1, "created_at": NOW}
        await conn.execute(insert(archives).values(**left, **sizes, kept_until=NOW + 200 * HOUR))

    purged = archive_key(await gc.archived("a1", **deleted(NOW), purged_at=NOW), "a1")
    in_trash = archive_key(await gc.archived("a1", **deleted(NOW + 90 * HOUR)), "a1")
    stays["of a workspace in the trash"] = in_trash
    unknown = gc.put("unknown", "a1")
    everything = {purged, unknown, *replaced, *stays.values()}

    async def left_after(hours: float) -> tuple[set[str], int]:
        freed = await gc.tick(hours)
        return {item.key for item in await gc.stack.providers.archives.list()}, freed

    assert await left_after(0) == (everything, 0)
    assert await left_after(1.9) == (everything, 0)
    assert await left_after(2.1) == (everything - replaced - {purged}, 2 * WHOLE + len(CONTENT))
    assert await left_after(23.9) == (everything - replaced - {purged}, 0)
    assert await left_after(24.1) == (set(stays.values()), WHOLE)
    assert await left_after(100) == (set(stays.values()), 0)
    assert not any(name.startswith(purged.removesuffix("home.tar.zst")) for name in gc.names())


@IN_A_DIRECTORY
async def test_the_newest_archives_of_a_living_workspace_stay(gc: GcFixture) -> None:
    living, in_use = await gc.archived("a5"), await gc.archived("a3")
    keys = [gc.put(living, f"a{number}") for number in range(1, 6)]
    chosen = gc.put(in_use, "a1")
    sizes = {"sha256": SHA, "bytes": 1, "unpacked": 1, "entries": 1, "created_at": NOW}
    async with gc.stack.engine.begin() as conn:
        for number in (1, 2, 3, 5):  # the fourth cannot be restored: it was never recorded
            row = {"workspace_id": living, "archive_op_id": f"a{number}", "archive_key": keys[number - 1]}
            await conn.execute(insert(archives).values(**row, **sizes))
    request = {"kind": "restore", "actor": "u1", "source": None, "archive_op_id": "a1"}
    await gc.change(in_use, request=request)
    for hours in (0.0, 2.1):
        await gc.tick(hours, archives_kept=3)
    left = {item.key for item in await gc.stack.providers.archives.list()}
    assert left == {keys[1], keys[2], keys[4], archive_key(in_use, "a3"), chosen}
    await gc.change(in_use, request=None)
    for hours in (2.2, 4.3):
        await gc.tick(hours, archives_kept=0)
    left = {item.key for item in await gc.stack.providers.archives.list()}
    assert left == {keys[4], archive_key(in_use, "a3")}


def deleted(at: datetime) -> dict[str, object]:
    return {"desired_state": "DELETED", "deleted_at": at, "phase": "DELETED"}


@IN_A_DIRECTORY
async def test_an_orphan_that_is_needed_again_begins_a_new_grace(gc: GcFixture) -> None:
    living = await gc.archived("a2")
    old = gc.put(living, "a1")
    await gc.tick(0)
    await gc.change(living, archive_op_id="a1")
    await gc.tick(1.5)
    await gc.change(living, archive_op_id="a2")
    for hours in (2.5, 4.4):
        assert await gc.tick(hours) == 0
    assert await gc.tick(4.6) == WHOLE
    assert old not in gc.names()


@pytest.mark.parametrize("marker", [None, b"another-installation\n"])
async def test_a_store_without_a_marker_or_of_another_installation_is_left_alone(
    gc: GcFixture, marker: bytes | None
) -> None:
    living = await gc.archived("a2")
    gc.put(living, "a1")
    before = gc.names()
    await gc.tick(0)
    objects = open_object_store(gc.url)
    if marker is None:
        objects.remove(".codehub-installation")
    else:
        objects.write(".codehub-installation", marker)
    for hours in (3, 100):
        assert await gc.tick(hours) == 0
    assert gc.names() == before


@pytest.mark.parametrize("orphans", [2, 3])
async def test_more_than_a_tenth_orphaned_at_once_is_an_alarm(gc: GcFixture, orphans: int) -> None:
    broken = await gc.workspace(phase="ERROR", error_reason="Timeout")
    for number in range(20 - orphans):
        gc.put(broken, f"a{number}")
    for number in range(orphans):
        gc.put(f"unknown{number}", "a1")
    with structlog.testing.capture_logs() as logs:
        await gc.tick(0)
        freed = await gc.tick(25)
    alarms = [entry["reason"] for entry in logs if entry["event"] == "GC alarm"]
    if orphans == 2:
        assert (alarms, freed) == ([], 2 * WHOLE)
    else:
        assert freed == 0
        assert "3 of 20 archives look orphaned at once" in alarms[0]
        assert len(gc.names()) == 40


async def test_an_orphan_that_cannot_be_removed_does_not_stop_the_rest(gc: GcFixture) -> None:
    living = await gc.archived("a9")
    keys = [gc.put(living, f"a{number}") for number in range(3)]

    class Stubborn(ArchiveStore):
        async def remove(self, key: str) -> None:
            if key == keys[0]:
                raise StoreTrouble("this one cannot be removed")
            await super().remove(key)

    await gc.tick(0)
    assert await gc.tick(3, Stubborn(gc.url, INSTALLATION)) == 2 * WHOLE
    assert {name for name in gc.names() if "home" in name} == {keys[0], archive_key(living, "a9")}
    assert await gc.tick(4) == WHOLE


@IN_A_DIRECTORY
async def test_a_directory_that_is_away_skips_the_cycle(gc: GcFixture) -> None:
    living = await gc.archived("a2")
    gc.put(living, "a1")
    await gc.tick(0)
    root = Path(gc.url.removeprefix("file://"))
    away = root.rename(root.with_name("away"))
    assert await gc.tick(3) == 0
    away.rename(root)
    assert len(gc.names()) == 4
    assert await gc.tick(4) == WHOLE


@ON_S3
@pytest.mark.parametrize("path", ["list-type", "uploads", ".codehub-installation"])
async def test_a_service_that_cannot_be_listed_skips_the_cycle(gc: GcFixture, path: str) -> None:
    living = await gc.archived("a2")
    gc.put(living, "a1")
    assert gc.proxy is not None
    await gc.tick(0)
    gc.proxy.break_requests("listing", Fault.ERROR, "GET", path)
    assert await gc.tick(3) == 0
    gc.proxy.heal("listing")
    assert len(gc.names()) == 4
    assert await gc.tick(4) == WHOLE


@IN_A_DIRECTORY
async def test_a_database_that_cannot_be_read_ends_the_cycle_before_anything_is_removed(
    gc: GcFixture,
) -> None:
    living = await gc.archived("a2")
    gc.put(living, "a1")
    await gc.tick(0)
    async with gc.stack.engine.begin() as conn:
        await conn.execute(text("ALTER TABLE workspaces RENAME TO away"))
    with pytest.raises(DBAPIError):
        await gc.tick(3)
    assert len(gc.names()) == 4


async def test_the_upload_of_a_living_job_stays_and_that_of_a_killed_one_goes(gc: GcFixture) -> None:
    workspace_id = await gc.workspace()
    await gc.fill_home(workspace_id)
    location = gc.stack.providers.storage_location
    key = (await gc.stack.get(workspace_id)).home_store_key
    if gc.proxy is not None:
        gc.proxy.break_requests("parts", Fault.SLOW, "PUT", "partNumber")
    job = ArchiveJob(location, workspace_id, key, GENERATION, "a1", 1, reserve=0)
    await gc.halfway("op1", job, gc.has_begun)
    await gc.change(workspace_id, archive_op_id="a1", operation="ARCHIVING", op_id="op1", op_started_at=NOW)
    await gc.tick(0)
    assert await gc.tick(3) == 0
    (unfinished,) = gc.names()
    assert "#" in unfinished
    assert (await gc.status("op1")).state is JobState.RUNNING

    await gc.stack.providers.jobs.cancel("op1")
    assert (await gc.status("op1")).state is JobState.GONE
    assert gc.names() == {unfinished}
    assert await gc.tick(4) == 0, "the next attempt of the same operation may still want it"

    await gc.change(workspace_id, operation="NONE", op_id=None, op_started_at=None, archive_op_id="a2")
    await gc.change(workspace_id, archive_key=gc.put(workspace_id, "a2"))
    assert await gc.tick(5) == 0
    assert await gc.tick(6.9) == 0
    assert await gc.tick(7.1) > 0
    assert {item.archive_op_id for item in await gc.stack.providers.archives.list()} == {"a2"}
    assert not any("#" in name for name in gc.names())


@IN_A_DIRECTORY
async def test_the_staging_directory_of_a_killed_restore_goes(gc: GcFixture) -> None:
    workspace_id = await gc.workspace()
    home = await gc.fill_home(workspace_id)
    location = gc.stack.providers.storage_location
    key = (await gc.stack.get(workspace_id)).home_store_key
    await gc.run("op1", ArchiveJob(location, workspace_id, key, GENERATION, "a1", 1, reserve=0))
    await gc.run("op2", DeleteJob(location, workspace_id, key, GENERATION, 1))
    restore = RestoreJob(location, workspace_id, key, "op3", archive_key(workspace_id, "a1"), None, 1, 0)
    staging = home.parent / ".staging-op3"
    await gc.halfway("op3", restore, lambda: list(staging.glob("*"))[1:])
    await gc.stack.providers.jobs.cancel("op3")
    await gc.change(workspace_id, archive_op_id="a1", archive_key=archive_key(workspace_id, "a1"))
    for hours, there in ((0, True), (1.9, True), (2.1, False)):
        await gc.tick(hours)
        await gc.stack.wait_for_jobs()
        assert staging.exists() == there
    assert len(gc.names()) == 2
