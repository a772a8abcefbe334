"""`codehub migrate` takes a new installation from empty servers to one that can start."""

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import typer
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from codehub.cli import migration, users
from codehub.database import accounts, tables
from codehub.database.engine import create_engine
from codehub.database.installation import PostgresClaims
from codehub.domain.storage_root import StorageRoot
from codehub.settings import Settings, load
from codehub.storage.archive.async_archive_store import ArchiveStore
from codehub.storage.archive.open_object_store import open_object_store
from codehub.storage.errors import Unobservable
from codehub.storage.installation_marker import MARKER
from tests.integration.cli.conftest import program
from tests.services import short_temp_dir
from tests.waiting import eventually, until


class NewInstallation:
    """An empty database and a data directory with empty roots."""

    def __init__(self, database_url: str, engine: AsyncEngine, data_dir: Path) -> None:
        self.database_url = database_url
        self.engine = engine
        self.data_dir = data_dir

    def settings(self, **given: object) -> Settings:
        return load(database_url=self.database_url, CODEHUB_DATA_DIR=self.data_dir, **given)

    async def migrate(self, **given: object) -> None:
        await migration.prepare(self.engine, self.settings(**given))

    async def installation_id(self) -> str:
        async with self.engine.connect() as conn:
            return str(await conn.scalar(select(tables.installation.c.id)))

    async def unclaimed(self) -> set[StorageRoot]:
        return await PostgresClaims(self.engine).unclaimed()

    def marker(self, name: str) -> Path:
        return self.data_dir / name / MARKER

    @contextlib.contextmanager
    def coordinator(self, redis_url: str) -> Iterator[Path]:
        """Run `codehub serve coordinator`; yield the path of its log."""
        given = {"DATABASE_URL": self.database_url, "REDIS_URL": redis_url, "LOG_LEVEL": "debug"}
        with program("serve", "coordinator", CODEHUB_DATA_DIR=str(self.data_dir), **given) as running:
            yield running.log


@pytest.fixture
async def site(empty_database_url: str) -> AsyncIterator[NewInstallation]:
    data_dir = short_temp_dir()
    for name in ("volumes", "archives"):
        (data_dir / name).mkdir()
    engine = create_engine(empty_database_url)
    yield NewInstallation(empty_database_url, engine, data_dir)
    await engine.dispose()
    shutil.rmtree(data_dir)


async def test_an_empty_database_volumes_root_and_store_become_one_installation(
    site: NewInstallation, s3_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    await site.migrate(archive_url=s3_url)
    own = await site.installation_id()
    assert site.marker("volumes").read_text() == f"{own}\n"
    await ArchiveStore(s3_url, own).check()
    assert await site.unclaimed() == set()
    assert "codehub users create-admin" in capsys.readouterr().out


async def test_an_unmounted_root_is_not_claimed_again(site: NewInstallation, redis_url: str) -> None:
    await site.migrate()
    for name in ("volumes", "archives"):
        site.marker(name).unlink()
    await site.migrate()
    with site.coordinator(redis_url) as log:
        await until(lambda: "volumes and archive store are claimed" in log.read_text(), "the claim's turn")
    assert not site.marker("volumes").exists()
    assert not site.marker("archives").exists()


async def test_directories_that_are_not_on_this_machine_are_left_to_the_first_leader(
    site: NewInstallation, redis_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("volumes", "archives"):
        (site.data_dir / name).rmdir()
    await site.migrate()
    assert f"{site.data_dir}/volumes is not on this machine" in capsys.readouterr().out
    assert await site.unclaimed() == set(StorageRoot)
    with site.coordinator(redis_url):
        await eventually(site.unclaimed, "the coordinator to claim both", lambda found: not found)
    own = await site.installation_id()
    for name in ("volumes", "archives"):
        assert site.marker(name).read_text() == f"{own}\n"


@pytest.mark.parametrize("name", ["volumes", "archives"])
async def test_a_location_of_another_installation_is_refused(site: NewInstallation, name: str) -> None:
    site.marker(name).write_text("another\n")
    with pytest.raises(
        Unobservable,
        match=rf"{name} belongs to another CodeHub installation \(another\).*choose an empty location",
    ):
        await site.migrate()
    assert site.marker(name).read_text() == "another\n"
    assert StorageRoot(name) in await site.unclaimed()


async def test_a_service_of_another_installation_is_refused(site: NewInstallation, s3_url: str) -> None:
    open_object_store(s3_url).write(MARKER, b"another\n")
    with pytest.raises(Unobservable, match="belongs to another CodeHub installation"):
        await site.migrate(archive_url=s3_url)
    assert open_object_store(s3_url).read(MARKER) == b"another\n"


async def test_a_location_that_holds_something_else_is_refused(site: NewInstallation) -> None:
    (site.data_dir / "volumes" / "thesis.tex").touch()
    with pytest.raises(Unobservable, match=r"is not empty and has no \.codehub-installation"):
        await site.migrate()
    assert [entry.name for entry in (site.data_dir / "volumes").iterdir()] == ["thesis.tex"]


async def test_two_migrations_at_once_make_one_installation(site: NewInstallation) -> None:
    await asyncio.gather(site.migrate(), site.migrate())
    own = await site.installation_id()
    for name in ("volumes", "archives"):
        assert [entry.name for entry in (site.data_dir / name).iterdir()] == [MARKER]
        assert site.marker(name).read_text() == f"{own}\n"


async def test_of_two_conditional_writes_to_a_service_the_later_one_changes_nothing(s3_url: str) -> None:
    objects = open_object_store(s3_url)
    made = await asyncio.gather(
        *(asyncio.to_thread(objects.create, MARKER, f"{number}".encode()) for number in range(4))
    )
    assert sorted(made) == [False, False, False, True]
    assert objects.read(MARKER) == f"{made.index(True)}".encode()


async def test_the_first_admin_is_made_once_from_its_password(
    site: NewInstallation, capsys: pytest.CaptureFixture[str]
) -> None:
    await site.migrate(admin_password="first password", admin_username="Root")
    assert "created the admin root" in capsys.readouterr().out
    await site.migrate(admin_password="other password", admin_username="other")
    assert "admin" not in capsys.readouterr().out
    async with site.engine.connect() as conn:
        found, _ = await accounts.list_accounts(conn, 10, 0)
    assert [account.username for account in found] == ["root"]


def test_create_admin_makes_an_admin_and_refuses_a_name_that_is_taken(
    database_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DATABASE_URL", database_url)
    users.create_admin(None, generate=True)
    made = capsys.readouterr().out
    assert "created admin admin" in made and "password: " in made
    with pytest.raises(typer.Exit):
        users.create_admin("Admin", generate=True)
    assert "'admin' is taken" in capsys.readouterr().err
