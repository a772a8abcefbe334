"""The lanes: one installation and copies of it, so that cells can be played beside each other."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import asyncpg

from codehub.database import installation
from codehub.database.engine import create_engine
from codehub.database.tables import users
from codehub.settings import load
from codehub.storage.volumes.local_volumes import LocalVolumes
from codehub.ulids import new_id
from tests.chaos.crash_matrix.forks import Zygote
from tests.chaos.crash_matrix.lane import OWNER, Lane
from tests.chaos.crash_matrix.matrix import DEATHS
from tests.chaos.crash_matrix.stages import build_stages
from tests.chaos.crash_matrix.stores import S3, LocalDirectory
from tests.s3 import S3Server, new_store_url
from tests.selection import EVERYTHING
from tests.services import Services, kill_processes_of, run, short_temp_dir
from tests.waiting import wait_for

LANES = (6 if EVERYTHING else DEATHS) if shutil.which("bwrap") else 1
"""Without namespaces a workspace's user is all that tells its processes apart, and the lanes share it."""

BULK = 7 << 20
"""Bytes in one file, besides everything odd: more than one part of an upload to S3."""


@dataclass(frozen=True)
class Site:
    lanes: list[Lane]
    hashes: dict[str, str]
    """Of the homes that the stages hold."""
    installation_id: str

    @contextmanager
    def on_s3(self, server: S3Server) -> Iterator[None]:
        """Keep the archives on S3 meanwhile."""
        local = [lane.store for lane in self.lanes]
        for lane in self.lanes:
            lane.store = S3(server, new_store_url())
            lane.store.claim(self.installation_id)
        try:
            yield
        finally:
            for lane, store in zip(self.lanes, local, strict=True):
                lane.store = store


@contextmanager
def open_site(services: Services, lanes: int = LANES) -> Iterator[Site]:
    root = short_temp_dir()
    try:
        with Zygote.running(root / "zygote.sock") as zygote:
            site = run(_build(services, zygote, root, lanes))
            yield site
            for lane in site.lanes:
                run(services.drop_database(lane.database_url))
    finally:
        wait_for(lambda: not kill_processes_of(root), "every process of the matrix to end")
        shutil.rmtree(root)


async def _build(services: Services, zygote: Zygote, root: Path, count: int) -> Site:
    (root / "stages").mkdir()
    url = await services.migrated_database()
    installation_id = await _found(url)
    lanes: list[Lane] = []
    hashes: dict[str, str] = {}
    for number in range(count):
        place = root / str(number)
        chosen = url if number == 0 else await _copied(services, url, number)
        store = LocalDirectory(place / "archives")
        LocalVolumes(place / "volumes", installation_id).initialise()
        store.claim(installation_id)
        lane = Lane(place, chosen, services.redis.url, zygote, store, root / "stages")
        lane.prepare()
        lanes.append(lane)
        if number == 0:
            lane.forks_jobs = False
            async with lane.connected():
                hashes = await build_stages(lane, BULK)
                await lane.clear()
            lane.forks_jobs = True
    return Site(lanes, hashes, installation_id)


async def _found(url: str) -> str:
    engine = create_engine(url)
    own = await installation.ensure(engine, new_id(), load().workspace_uid_base)
    async with engine.begin() as conn:
        user = {"id": OWNER, "username": "one", "password_hash": "x", "role": "user"}
        await conn.execute(users.insert().values(**user))
    await engine.dispose()
    return own.id


async def _copied(services: Services, url: str, number: int) -> str:
    """A database with the same rows, and the stages among them."""
    original = url.split("@/")[1].split("?")[0]
    name = f"{original}_lane_{number}"
    connection = await asyncpg.connect(services.postgres.database_url("postgres"))
    try:
        await connection.execute(f"CREATE DATABASE {name} TEMPLATE {original}")
    finally:
        await connection.close()
    return services.postgres.database_url(name)
