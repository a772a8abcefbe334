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
from codehub.storage.archive.async_archive_store import ArchiveStore
from codehub.storage.archive.open_object_store import open_object_store
from codehub.storage.errors import StoreTrouble
from codehub.storage.jobs.spec import ArchiveJob, DeleteJob, RestoreJob
from tests.faults import Fault, FaultyProxy
from tests.integration.coordinator.conftest import INSTALLATION, new_bench
from tests.integration.storage.gc_fixture import CONTENT, GENERATION, HOUR, NOW, SHA, WHOLE, GcFixture
from tests.s3 import S3Server, use

ON_S3 = pytest.mark.parametrize("fixture", ["s3"], indirect=True)
IN_A_DIRECTORY = pytest.mark.parametrize("fixture", ["directory"], indirect=True)


@pytest.fixture(params=["directory", "s3"])
async def fixture(
    request: pytest.FixtureRequest, database_url: str, redis_url: str
) -> AsyncIterator[GcFixture]:
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


async def test_what_nothing_protects_goes_after_its_grace_and_the_rest_stays(fixture: GcFixture) -> None:
    living = await fixture.archived("a5")
    stays = {
        "the archive of its workspace": archive_key(living, "a5"),
        "newer than the archive of its workspace": fixture.put(living, "a6"),
    }
    replaced = {fixture.put(living, "a4"), fixture.put(living, "a3", meta=False)}

    busy = await fixture.archived("a1", archive_op_id="a2")
    stays["of the archive operation under way"] = fixture.put(busy, "a2", meta=False)
    stays["the archive it will replace"] = archive_key(busy, "a1")

    broken = await fixture.archived("a2", phase="ERROR", error_reason="Timeout")
    stays["of a workspace in ERROR"] = archive_key(broken, "a2")
    stays["older, of a workspace in ERROR"] = fixture.put(broken, "a1")

    recovered = await fixture.archived("a2")
    stays["of a recovered workspace"] = archive_key(recovered, "a2")
    stays["left behind by a recovery, in its grace"] = kept = fixture.put(recovered, "a1")
    async with fixture.bench.engine.begin() as conn:
        left = {"workspace_id": recovered, "archive_op_id": "a1", "archive_key": kept, "sha256": SHA}
        sizes = {"bytes": 1, "unpacked": 1, "entries": 1, "created_at": NOW}
        await conn.execute(insert(archives).values(**left, **sizes, kept_until=NOW + 200 * HOUR))

    purged = archive_key(await fixture.archived("a1", **deleted(NOW), purged_at=NOW), "a1")
    in_trash = archive_key(await fixture.archived("a1", **deleted(NOW + 90 * HOUR)), "a1")
    stays["of a workspace in the trash"] = in_trash
    unknown = fixture.put("nobodyknows", "a1")
    everything = {purged, unknown, *replaced, *stays.values()}

    async def left_after(hours: float) -> tuple[set[str], int]:
        freed = await fixture.tick(hours)
        return {item.key for item in await fixture.bench.providers.archives.list()}, freed

    assert await left_after(0) == (everything, 0)
    assert await left_after(1.9) == (everything, 0)
    assert await left_after(2.1) == (everything - replaced - {purged}, 2 * WHOLE + len(CONTENT))
    assert await left_after(23.9) == (everything - replaced - {purged}, 0)
    assert await left_after(24.1) == (set(stays.values()), WHOLE)
    assert await left_after(100) == (set(stays.values()), 0)
    assert not any(name.startswith(purged.removesuffix("home.tar.zst")) for name in fixture.names())


def deleted(at: datetime) -> dict[str, object]:
    return {"desired_state": "DELETED", "deleted_at": at, "phase": "DELETED"}


@IN_A_DIRECTORY
async def test_an_orphan_that_is_needed_again_begins_a_new_grace(fixture: GcFixture) -> None:
    living = await fixture.archived("a2")
    old = fixture.put(living, "a1")
    await fixture.tick(0)
    await fixture.change(living, archive_op_id="a1")
    await fixture.tick(1.5)
    await fixture.change(living, archive_op_id="a2")
    for hours in (2.5, 4.4):
        assert await fixture.tick(hours) == 0
    assert await fixture.tick(4.6) == WHOLE
    assert old not in fixture.names()


@pytest.mark.parametrize("marker", [None, b"another-installation\n"])
async def test_a_store_of_nobody_or_of_another_installation_is_left_alone(
    fixture: GcFixture, marker: bytes | None
) -> None:
    living = await fixture.archived("a2")
    fixture.put(living, "a1")
    before = fixture.names()
    await fixture.tick(0)
    objects = open_object_store(fixture.url)
    if marker is None:
        objects.remove(".codehub-installation")
    else:
        objects.write(".codehub-installation", marker)
    for hours in (3, 100):
        assert await fixture.tick(hours) == 0
    assert fixture.names() == before


@pytest.mark.parametrize("orphans", [2, 3])
async def test_more_than_a_tenth_orphaned_at_once_is_an_alarm(fixture: GcFixture, orphans: int) -> None:
    broken = await fixture.workspace(phase="ERROR", error_reason="Timeout")
    for number in range(20 - orphans):
        fixture.put(broken, f"a{number}")
    for number in range(orphans):
        fixture.put(f"unknown{number}", "a1")
    with structlog.testing.capture_logs() as logs:
        await fixture.tick(0)
        freed = await fixture.tick(25)
    alarms = [entry["reason"] for entry in logs if entry["event"] == "GC alarm"]
    if orphans == 2:
        assert (alarms, freed) == ([], 2 * WHOLE)
    else:
        assert freed == 0
        assert "3 of 20 archives look orphaned at once" in alarms[0]
        assert len(fixture.names()) == 40


async def test_one_that_cannot_be_removed_does_not_stop_the_rest(fixture: GcFixture) -> None:
    living = await fixture.archived("a9")
    keys = [fixture.put(living, f"a{number}") for number in range(3)]

    class Stubborn(ArchiveStore):
        async def remove(self, key: str) -> None:
            if key == keys[0]:
                raise StoreTrouble("this one cannot be removed")
            await super().remove(key)

    await fixture.tick(0)
    assert await fixture.tick(3, Stubborn(fixture.url, INSTALLATION)) == 2 * WHOLE
    assert {name for name in fixture.names() if "home" in name} == {keys[0], archive_key(living, "a9")}
    assert await fixture.tick(4) == WHOLE


@IN_A_DIRECTORY
async def test_a_directory_that_is_away_skips_the_cycle(fixture: GcFixture) -> None:
    living = await fixture.archived("a2")
    fixture.put(living, "a1")
    await fixture.tick(0)
    root = Path(fixture.url.removeprefix("file://"))
    away = root.rename(root.with_name("away"))
    assert await fixture.tick(3) == 0
    away.rename(root)
    assert len(fixture.names()) == 4
    assert await fixture.tick(4) == WHOLE


@ON_S3
@pytest.mark.parametrize("words", ["list-type", "uploads", ".codehub-installation"])
async def test_a_service_that_cannot_be_listed_skips_the_cycle(fixture: GcFixture, words: str) -> None:
    living = await fixture.archived("a2")
    fixture.put(living, "a1")
    assert fixture.proxy is not None
    await fixture.tick(0)
    fixture.proxy.break_requests("listing", Fault.ERROR, "GET", words)
    assert await fixture.tick(3) == 0
    fixture.proxy.heal("listing")
    assert len(fixture.names()) == 4
    assert await fixture.tick(4) == WHOLE


@IN_A_DIRECTORY
async def test_a_database_that_cannot_be_read_ends_the_cycle_before_anything_is_removed(
    fixture: GcFixture,
) -> None:
    living = await fixture.archived("a2")
    fixture.put(living, "a1")
    await fixture.tick(0)
    async with fixture.bench.engine.begin() as conn:
        await conn.execute(text("ALTER TABLE workspaces RENAME TO away"))
    with pytest.raises(DBAPIError):
        await fixture.tick(3)
    assert len(fixture.names()) == 4


async def test_the_upload_of_a_living_job_stays_and_that_of_a_killed_one_goes(fixture: GcFixture) -> None:
    workspace_id = await fixture.workspace()
    await fixture.fill_home(workspace_id)
    place, key = (
        fixture.bench.providers.storage_location,
        (await fixture.bench.get(workspace_id)).home_store_key,
    )
    if fixture.proxy is not None:
        fixture.proxy.break_requests("parts", Fault.SLOW, "PUT", "partNumber")
    job = ArchiveJob(place, workspace_id, key, GENERATION, "a1", 1, reserve=0)
    await fixture.halfway("op1", job, fixture.has_begun)
    await fixture.change(
        workspace_id, archive_op_id="a1", operation="ARCHIVING", op_id="op1", op_started_at=NOW
    )
    await fixture.tick(0)
    assert await fixture.tick(3) == 0
    (unfinished,) = fixture.names()
    assert "#" in unfinished
    assert (await fixture.status("op1")).state is JobState.RUNNING

    await fixture.bench.providers.jobs.cancel("op1")
    assert (await fixture.status("op1")).state is JobState.GONE
    assert fixture.names() == {unfinished}
    assert await fixture.tick(4) == 0, "the next attempt of the same operation may still want it"

    await fixture.change(workspace_id, operation="NONE", op_id=None, op_started_at=None, archive_op_id="a2")
    await fixture.change(workspace_id, archive_key=fixture.put(workspace_id, "a2"))
    assert await fixture.tick(5) == 0
    assert await fixture.tick(6.9) == 0
    assert await fixture.tick(7.1) > 0
    assert {item.archive_op_id for item in await fixture.bench.providers.archives.list()} == {"a2"}
    assert not any("#" in name for name in fixture.names())


@IN_A_DIRECTORY
async def test_the_staging_directory_of_a_killed_restore_goes(fixture: GcFixture) -> None:
    workspace_id = await fixture.workspace()
    home = await fixture.fill_home(workspace_id)
    place, key = (
        fixture.bench.providers.storage_location,
        (await fixture.bench.get(workspace_id)).home_store_key,
    )
    await fixture.run("op1", ArchiveJob(place, workspace_id, key, GENERATION, "a1", 1, reserve=0))
    await fixture.run("op2", DeleteJob(place, workspace_id, key, GENERATION, 1))
    restore = RestoreJob(place, workspace_id, key, "op3", archive_key(workspace_id, "a1"), None, 1, 0)
    staging = home.parent / ".staging-op3"
    await fixture.halfway("op3", restore, lambda: list(staging.glob("*"))[1:])
    await fixture.bench.providers.jobs.cancel("op3")
    await fixture.change(workspace_id, archive_op_id="a1", archive_key=archive_key(workspace_id, "a1"))
    for hours, there in ((0, True), (1.9, True), (2.1, False)):
        await fixture.tick(hours)
        await fixture.bench.jobs_end()
        assert staging.exists() == there
    assert len(fixture.names()) == 2
