"""Pool of equal installations, so that cells of the crash matrix can run in parallel."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import asyncpg

from codehub.database import installation as database_installation
from codehub.database.engine import create_engine
from codehub.database.tables import users
from codehub.settings import load
from codehub.storage.volumes.local_volumes import LocalVolumes
from codehub.ulids import new_id
from tests.chaos.crash_matrix.fork_server_client import ForkServer
from tests.chaos.crash_matrix.initial_states import build_initial_states
from tests.chaos.crash_matrix.installation import OWNER, Installation
from tests.chaos.crash_matrix.matrix import CRASHES_PER_SCENARIO
from tests.chaos.crash_matrix.stores import S3, LocalDirectory
from tests.s3 import S3Server, new_store_url
from tests.selection import EVERYTHING
from tests.services import Services, kill_processes_of, run, short_temp_dir
from tests.waiting import wait_for

POOL_SIZE = (6 if EVERYTHING else CRASHES_PER_SCENARIO) if shutil.which("bwrap") else 1
"""One without namespaces: then CodeHub finds processes by their user, which all share."""

BULK = 7 << 20
"""Size in bytes of the largest file in a home: more than one part of an upload to S3."""


@dataclass(frozen=True)
class InstallationPool:
    """Installations with the same initial states."""

    installations: list[Installation]
    hashes: dict[str, str]
    """Hashes of the homes that the initial states contain."""
    installation_id: str

    @contextmanager
    def on_s3(self, server: S3Server) -> Iterator[None]:
        """Store the archives on S3 within the block."""
        local = [installation.store for installation in self.installations]
        for installation in self.installations:
            installation.store = S3(server, new_store_url())
            installation.store.claim(self.installation_id)
        try:
            yield
        finally:
            for installation, store in zip(self.installations, local, strict=True):
                installation.store = store


@contextmanager
def open_installation_pool(services: Services, size: int = POOL_SIZE) -> Iterator[InstallationPool]:
    root = short_temp_dir()
    try:
        with ForkServer.running(root / "fork-server.sock") as fork_server:
            pool = run(_build(services, fork_server, root, size))
            yield pool
            for installation in pool.installations:
                run(services.drop_database(installation.database_url))
    finally:
        wait_for(lambda: not kill_processes_of(root), "every process of the matrix to end")
        shutil.rmtree(root)


async def _build(services: Services, fork_server: ForkServer, root: Path, count: int) -> InstallationPool:
    (root / "states").mkdir()
    url = await services.migrated_database()
    installation_id = await _create_owner(url)
    installations: list[Installation] = []
    hashes: dict[str, str] = {}
    for number in range(count):
        directory = root / str(number)
        database_url = url if number == 0 else await _copy_database(services, url, number)
        store = LocalDirectory(directory / "archives")
        LocalVolumes(directory / "volumes", installation_id).initialise()
        store.claim(installation_id)
        installation = Installation(
            directory, database_url, services.redis.url, fork_server, store, root / "states"
        )
        installation.write_images_file()
        installations.append(installation)
        if number == 0:
            installation.forks_jobs = False
            async with installation.connected():
                hashes = await build_initial_states(installation, BULK)
                await installation.clear()
            installation.forks_jobs = True
    return InstallationPool(installations, hashes, installation_id)


async def _create_owner(url: str) -> str:
    engine = create_engine(url)
    own = await database_installation.load_or_create_installation(engine, new_id(), load().workspace_uid_base)
    async with engine.begin() as conn:
        user = {"id": OWNER, "username": "one", "password_hash": "x", "role": "user"}
        await conn.execute(users.insert().values(**user))
    await engine.dispose()
    return own.id


async def _copy_database(services: Services, url: str, number: int) -> str:
    """Return the URL of a copy of the database, with the initial states."""
    original = url.split("@/")[1].split("?")[0]
    name = f"{original}_copy_{number}"
    connection = await asyncpg.connect(services.postgres.database_url("postgres"))
    try:
        await connection.execute(f"CREATE DATABASE {name} TEMPLATE {original}")
    finally:
        await connection.close()
    return services.postgres.database_url(name)
