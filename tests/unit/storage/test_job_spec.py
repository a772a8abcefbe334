"""spec.json stays readable for jobs of other versions."""

import json
from pathlib import Path

from codehub.domain.observation import Generation
from codehub.storage.jobs.spec import ArchiveJob, RestoreJob, StorageLocation, dump_spec, load_spec

LOCATION = StorageLocation(Path("/volumes"), "file:///archives", "installation-1")
KEY = "users/u1/workspaces/w1/home"
ARCHIVE = {
    "kind": "archive",
    "place": {
        "volumes_root": "/volumes",
        "archive_url": "file:///archives",
        "installation_id": "installation-1",
    },
    "workspace_id": "w1",
    "home_store_key": KEY,
    "generation": {"op_id": "op1", "archive_key": None},
    "archive_op_id": "a1",
    "epoch": 7,
    "reserve": 5,
}
"""As written by the version that called the location a place."""


def test_a_spec_has_the_fields_that_earlier_versions_read() -> None:
    job = ArchiveJob(LOCATION, "w1", KEY, Generation("op1", None), "a1", epoch=7, reserve=5)
    assert json.loads(dump_spec(job)) == ARCHIVE
    assert load_spec(json.dumps(ARCHIVE).encode()) == job


def test_fields_that_earlier_versions_did_not_write_have_defaults() -> None:
    job = RestoreJob(LOCATION, "w1", KEY, "op2", "w1/a1/home.tar.zst", None, epoch=7, reserve=5)
    fields = json.loads(dump_spec(job))
    del fields["uid"], fields["reserve_files"]
    assert load_spec(json.dumps(fields).encode()) == job
