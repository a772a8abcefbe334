"""The same jobs against an S3-compatible service."""

import os
from dataclasses import replace

from codehub.domain.observation import VolumeFact
from tests.integration.storage.conftest import FIRST, KEY, Site
from tests.trees import tree_hash


async def test_a_home_goes_to_a_service_and_comes_back(site: Site, s3_url: str) -> None:
    site.place = replace(site.place, archive_url=s3_url)
    await site.store.initialise()
    await site.make_home()
    (site.home / "bulk").write_bytes(os.urandom(30 << 20))
    before = tree_hash(site.home)
    await site.done("archive", site.archive_job())
    assert [archive.complete for archive in await site.store.list()] == [True]
    assert await site.volumes.status(KEY) == VolumeFact(FIRST)
    await site.done("delete", site.delete_job())
    await site.done("restore", site.restore_job())
    assert tree_hash(site.home) == before
    await site.store.remove("w1/a1/home.tar.zst")
    assert await site.store.find("w1", "a1") is None
    assert await site.store.list() == []
