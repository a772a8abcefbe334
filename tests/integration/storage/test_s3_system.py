"""A whole system whose archives are in an S3 service."""

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from codehub.storage.archive.open_object_store import open_object_store
from tests.integration.coordinator.conftest import IDE
from tests.s3 import SECRET_KEY, S3Server
from tests.services import System
from tests.trees import chown_to_home_owner, make_tree, tree_hash
from tests.waiting import wait_for

TELL = 'env > "$HOME/environment"; exec "$@"'
COMMAND = ["/bin/sh", "-c", TELL, "sh", "/usr/bin/python3", "-c", IDE, "{socket}"]
IMAGES = f"""
[[image]]
name = "tells-its-environment"
ready_path = "/"
process = {json.dumps(COMMAND)}
"""


def home_of(system: System, workspace_id: str) -> Path:
    (home,) = (system.data_dir / "volumes").glob(f"users/*/workspaces/{workspace_id}/home")
    return home


def reach(client: httpx.Client, path: str, desired: str) -> None:
    assert client.patch(path, json={"desired_state": desired}).status_code == 200
    settle(client, path, desired)


def settle(client: httpx.Client, path: str, phase: str) -> None:
    def settled() -> bool:
        workspace: dict[str, Any] = client.get(path).json()
        assert workspace["error_message"] is None, workspace
        return workspace["phase"] == phase and workspace["operation"] == "NONE"

    wait_for(settled, phase)


def names(url: str) -> set[str]:
    return {stored.path for stored in open_object_store(url).list()}


def test_a_workspace_lives_and_ends_with_its_archives_in_a_service(
    make_system: Callable[..., System], s3_server: S3Server, s3_url: str, tmp_path: Path
) -> None:
    (tmp_path / "images.toml").write_text(IMAGES)
    system = make_system(
        **s3_server.environment(),
        ARCHIVE_URL=s3_url,
        IMAGES_FILE=str(tmp_path / "images.toml"),
        COORDINATOR_GC_INTERVAL="1",
        GC_ORPHAN_GRACE_SECONDS="1",
        TRASH_RETENTION_SECONDS="1",
    ).start()
    assert names(s3_url) == {".codehub-installation"}
    with contextlib.closing(system.client()) as client:
        made = client.post("/api/v1/workspaces", json={"name": "one"}).json()
        path = f"/api/v1/workspaces/{made['id']}"
        settle(client, path, "RUNNING")
        home = home_of(system, made["id"])
        known = (home / "environment").read_text()
        assert "HOME=" in known
        assert "AWS_" not in known
        assert SECRET_KEY not in known
        reach(client, path, "STANDBY")
        make_tree(home, seed=1)
        chown_to_home_owner(home)
        before = tree_hash(home)

        reach(client, path, "ARCHIVED")
        assert not home.exists()
        assert {name.rpartition("/")[2] for name in names(s3_url)} == {
            ".codehub-installation", "home.tar.zst", ".meta",
        }  # fmt: skip
        reach(client, path, "STANDBY")
        assert tree_hash(home) == before

        assert client.delete(path).status_code == 204
        wait_for(lambda: names(s3_url) == {".codehub-installation"}, "the archives to be purged")
        assert not home.exists()
