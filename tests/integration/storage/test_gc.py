"""GC on real stores, a directory and an S3 server, with a real database: what stays, what goes, and when."""

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
from codehub.storage.archive.open_object_store import open_object_store
from codehub.storage.archive.async_archive_store import ArchiveStore
from codehub.storage.errors import StoreTrouble
from codehub.storage.jobs.spec import ArchiveJob, DeleteJob, RestoreJob
from tests.faults import Fault, FaultyProxy
from tests.integration.coordinator.conftest import INSTALLATION, new_bench
from tests.integration.storage.gc_fixture import CONTENT, GENERATION, HOUR, NOW, SHA, WHOLE, GcFixture
from tests.s3 import S3Server, use

ON_S3 = pytest.mark.parametrize("yard", ["s3"], indirect=True)
IN_A_DIRECTORY = pytest.mark.parametrize("yard", ["directory"], indirect=True)


@pytest.fixture(params=["directory", "s3"])
async def yard(request: pytest.FixtureRequest, database_url: str, redis_url: str) -> AsyncIterator[GcFixture]:
    async with new_bench(database_url, redis_url) as bench:
        if request.param == "directory":
            yield GcFixture(bench, f"file://{bench.settings.data_dir}/archives", None)
            return
        url: str = request.getfixturevalue("s3_url")
        server: S3Server = request.getfixturevalue("s3_server")
        with FaultyProxy.before(server.endpoint) as proxy:
            use(server.environment(proxy.endpoint), request.getfixturevalue("monkeypatch"))
            await ArchiveStore(url, INSTALLATION).initialise()
            yield GcFixture(bench, url, proxy)


async def test_what_nothing_protects_goes_after_its_grace_and_the_rest_stays(yard: GcFixture) -> None:
    living = await yard.archived("a5")
    stays = {
        "the archive of its workspace": archive_key(living, "a5"),
        "newer than the archive of its workspace": yard.put(living, "a6"),
    }
    replaced = {yard.put(living, "a4"), yard.put(living, "a3", meta=False)}

    busy = await yard.archived("a1", archive_op_id="a2")
    stays["of the archive operation under way"] = yard.put(busy, "a2", meta=False)
    stays["the archive it will replace"] = archive_key(busy, "a1")

    broken = await yard.archived("a2", phase="ERROR", error_reason="Timeout")
    stays["of a workspace in ERROR"] = archive_key(broken, "a2")
    stays["older, of a workspace in ERROR"] = yard.put(broken, "a1")

    recovered = await yard.archived("a2")
    stays["of a recovered workspace"] = archive_key(recovered, "a2")
    stays["left behind by a recovery, in its grace"] = kept = yard.put(recovered, "a1")
    async with yard.bench.engine.begin() as conn:
        left = {"workspace_id": recovered, "archive_op_id": "a1", "archive_key": kept, "sha256": SHA}
        sizes = {"bytes": 1, "unpacked": 1, "entries": 1, "created_at": NOW}
        await conn.execute(insert(archives).values(**left, **sizes, kept_until=NOW + 200 * HOUR))

    purged = archive_key(await yard.archived("a1", **deleted(NOW), purged_at=NOW), "a1")
    in_trash = archive_key(await yard.archived("a1", **deleted(NOW + 90 * HOUR)), "a1")
    stays["of a workspace in the trash"] = in_trash
    unknown = yard.put("nobodyknows", "a1")
    everything = {purged, unknown, *replaced, *stays.values()}

    async def left_after(hours: float) -> tuple[set[str], int]:
        freed = await yard.tick(hours)
        return {item.key for item in await yard.bench.providers.archives.list()}, freed

    assert await left_after(0) == (everything, 0)
    assert await left_after(1.9) == (everything, 0)
    assert await left_after(2.1) == (everything - replaced - {purged}, 2 * WHOLE + len(CONTENT))
    assert await left_after(23.9) == (everything - replaced - {purged}, 0)
    assert await left_after(24.1) == (set(stays.values()), WHOLE)
    assert await left_after(100) == (set(stays.values()), 0)
    assert not any(name.startswith(purged.removesuffix("home.tar.zst")) for name in yard.names())


def deleted(at: datetime) -> dict[str, object]:
    return {"desired_state": "DELETED", "deleted_at": at, "phase": "DELETED"}


@IN_A_DIRECTORY
async def test_an_orphan_that_is_needed_again_begins_a_new_grace(yard: GcFixture) -> None:
    living = await yard.archived("a2")
    old = yard.put(living, "a1")
    await yard.tick(0)
    await yard.change(living, archive_op_id="a1")
    await yard.tick(1.5)
    await yard.change(living, archive_op_id="a2")
    for hours in (2.5, 4.4):
        assert await yard.tick(hours) == 0
    assert await yard.tick(4.6) == WHOLE
    assert old not in yard.names()


@pytest.mark.parametrize("marker", [None, b"another-installation\n"])
async def test_a_store_of_nobody_or_of_another_installation_is_left_alone(
    yard: GcFixture, marker: bytes | None
) -> None:
    living = await yard.archived("a2")
    yard.put(living, "a1")
    before = yard.names()
    await yard.tick(0)
    objects = open_object_store(yard.url)
    if marker is None:
        objects.remove(".codehub-installation")
    else:
        objects.write(".codehub-installation", marker)
    for hours in (3, 100):
        assert await yard.tick(hours) == 0
    assert yard.names() == before


@pytest.mark.parametrize("orphans", [2, 3])
async def test_more_than_a_tenth_orphaned_at_once_is_an_alarm(yard: GcFixture, orphans: int) -> None:
    broken = await yard.workspace(phase="ERROR", error_reason="Timeout")
    for number in range(20 - orphans):
        yard.put(broken, f"a{number}")
    for number in range(orphans):
        yard.put(f"unknown{number}", "a1")
    with structlog.testing.capture_logs() as logs:
        await yard.tick(0)
        freed = await yard.tick(25)
    alarms = [entry["reason"] for entry in logs if entry["event"] == "GC alarm"]
    if orphans == 2:
        assert (alarms, freed) == ([], 2 * WHOLE)
    else:
        assert freed == 0
        assert "3 of 20 archives look orphaned at once" in alarms[0]
        assert len(yard.names()) == 40


async def test_one_that_cannot_be_removed_does_not_stop_the_rest(yard: GcFixture) -> None:
    living = await yard.archived("a9")
    keys = [yard.put(living, f"a{number}") for number in range(3)]

    class Stubborn(ArchiveStore):
        async def remove(self, key: str) -> None:
            if key == keys[0]:
                raise StoreTrouble("this one cannot be removed")
            await super().remove(key)

    await yard.tick(0)
    assert await yard.tick(3, Stubborn(yard.url, INSTALLATION)) == 2 * WHOLE
    assert {name for name in yard.names() if "home" in name} == {keys[0], archive_key(living, "a9")}
    assert await yard.tick(4) == WHOLE


@IN_A_DIRECTORY
async def test_a_directory_that_is_away_skips_the_cycle(yard: GcFixture) -> None:
    living = await yard.archived("a2")
    yard.put(living, "a1")
    await yard.tick(0)
    root = Path(yard.url.removeprefix("file://"))
    away = root.rename(root.with_name("away"))
    assert await yard.tick(3) == 0
    away.rename(root)
    assert len(yard.names()) == 4
    assert await yard.tick(4) == WHOLE


@ON_S3
@pytest.mark.parametrize("words", ["list-type", "uploads", ".codehub-installation"])
async def test_a_service_that_cannot_be_listed_skips_the_cycle(yard: GcFixture, words: str) -> None:
    living = await yard.archived("a2")
    yard.put(living, "a1")
    assert yard.proxy is not None
    await yard.tick(0)
    yard.proxy.break_requests("listing", Fault.ERROR, "GET", words)
    assert await yard.tick(3) == 0
    yard.proxy.heal("listing")
    assert len(yard.names()) == 4
    assert await yard.tick(4) == WHOLE


@IN_A_DIRECTORY
async def test_a_database_that_cannot_be_read_ends_the_cycle_before_anything_is_removed(yard: GcFixture) -> None:
    living = await yard.archived("a2")
    yard.put(living, "a1")
    await yard.tick(0)
    async with yard.bench.engine.begin() as conn:
        await conn.execute(text("ALTER TABLE workspaces RENAME TO away"))
    with pytest.raises(DBAPIError):
        await yard.tick(3)
    assert len(yard.names()) == 4


async def test_the_upload_of_a_living_job_stays_and_that_of_a_killed_one_goes(yard: GcFixture) -> None:
    workspace_id = await yard.workspace()
    await yard.fill_home(workspace_id)
    place, key = yard.bench.providers.storage_location, (await yard.bench.get(workspace_id)).home_store_key
    if yard.proxy is not None:
        yard.proxy.break_requests("parts", Fault.SLOW, "PUT", "partNumber")
    job = ArchiveJob(place, workspace_id, key, GENERATION, "a1", 1, reserve=0)
    await yard.halfway("op1", job, yard.has_begun)
    await yard.change(workspace_id, archive_op_id="a1", operation="ARCHIVING", op_id="op1", op_started_at=NOW)
    await yard.tick(0)
    assert await yard.tick(3) == 0
    (unfinished,) = yard.names()
    assert "#" in unfinished
    assert (await yard.status("op1")).state is JobState.RUNNING

    await yard.bench.providers.jobs.cancel("op1")
    assert (await yard.status("op1")).state is JobState.GONE
    assert yard.names() == {unfinished}
    assert await yard.tick(4) == 0, "the next attempt of the same operation may still want it"

    await yard.change(workspace_id, operation="NONE", op_id=None, op_started_at=None, archive_op_id="a2")
    await yard.change(workspace_id, archive_key=yard.put(workspace_id, "a2"))
    assert await yard.tick(5) == 0
    assert await yard.tick(6.9) == 0
    assert await yard.tick(7.1) > 0
    assert {item.archive_op_id for item in await yard.bench.providers.archives.list()} == {"a2"}
    assert not any("#" in name for name in yard.names())


@IN_A_DIRECTORY
async def test_the_staging_directory_of_a_killed_restore_goes(yard: GcFixture) -> None:
    workspace_id = await yard.workspace()
    home = await yard.fill_home(workspace_id)
    place, key = yard.bench.providers.storage_location, (await yard.bench.get(workspace_id)).home_store_key
    await yard.run("op1", ArchiveJob(place, workspace_id, key, GENERATION, "a1", 1, reserve=0))
    await yard.run("op2", DeleteJob(place, workspace_id, key, GENERATION, 1))
    restore = RestoreJob(place, workspace_id, key, "op3", archive_key(workspace_id, "a1"), None, 1, 0)
    staging = home.parent / ".staging-op3"
    await yard.halfway("op3", restore, lambda: list(staging.glob("*"))[1:])
    await yard.bench.providers.jobs.cancel("op3")
    await yard.change(workspace_id, archive_op_id="a1", archive_key=archive_key(workspace_id, "a1"))
    for hours, there in ((0, True), (1.9, True), (2.1, False)):
        await yard.tick(hours)
        await yard.bench.jobs_end()
        assert staging.exists() == there
    assert len(yard.names()) == 2
