"""The same jobs against an S3-compatible service, where one is given.

CODEHUB_TEST_S3_URL names an empty bucket or prefix (`s3://bucket/prefix`), the AWS_* variables the way to it.
"""

import os
from dataclasses import replace

import pytest
from ulid import ULID

from codehub.domain.observation import VolumeFact
from tests.integration.storage.conftest import FIRST, KEY, Site
from tests.trees import tree_hash

URL = os.environ.get("CODEHUB_TEST_S3_URL")


@pytest.mark.skipif(URL is None, reason="CODEHUB_TEST_S3_URL names no S3-compatible service")
async def test_a_home_goes_to_a_service_and_comes_back(site: Site) -> None:
    site.place = replace(site.place, archive_url=f"{URL}/{str(ULID()).lower()}")
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
