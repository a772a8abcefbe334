"""kill -9 of everything (CodeHub, PostgreSQL, Redis, jobs) in the middle of an archive and of a restore."""

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.services import System, kill_processes_of, wait_for
from tests.trees import make_tree, tree_hash

FAST = {
    "COORDINATOR_IDLE_INTERVAL": "1",
    "COORDINATOR_LEADER_RETRY_INTERVAL": "0.2",
    "RECONCILER_RETRY_BACKOFF": "0.5",
    "TTL_STANDBY_SECONDS": "0",
    "TTL_ARCHIVE_SECONDS": "0",
    "GATEWAY_WORKERS": "1",
    "ADMIN_PASSWORD": "a password for chaos",
    "DISK_RESERVE_BYTES": "0",
}
MOMENTS = 10
FILES, FILE_SIZE = 40, 4 << 20


def fill(home: Path) -> str:
    """A home that takes a moment to move, with every kind of entry; returns its hash."""
    make_tree(home, seed=7)
    for number in range(FILES):
        (home / f"noise-{number}").write_bytes(os.urandom(FILE_SIZE))
    return tree_hash(home)


class Progress:
    """How far the running storage job has come, as a number that only grows: the moment to kill at."""

    def __init__(self, system: System) -> None:
        self._jobs = system.data_dir / "jobs"

    def bytes(self) -> int:
        moved = [0]
        for file in self._jobs.glob("*/progress.json"):
            with contextlib.suppress(OSError, ValueError):
                moved.append(int(json.loads(file.read_text())["bytes"]))
        return max(moved)

    def is_working(self) -> bool:
        return any(self._jobs.iterdir()) if self._jobs.exists() else False


class Story:
    """One workspace of one system, through its API."""

    def __init__(self, system: System) -> None:
        self.system = system
        self.client = self._client()
        made = self.client.post("/api/v1/workspaces", json={"name": "chaos", "desired_state": "STANDBY"})
        assert made.status_code == 201, made.text
        self.id = made.json()["id"]
        self.settle("STANDBY")

    def _client(self) -> httpx.Client:
        return self.system.client(password=FAST["ADMIN_PASSWORD"])

    def workspace(self) -> dict[str, Any]:
        answer = self.client.get(f"/api/v1/workspaces/{self.id}")
        assert answer.status_code == 200, answer.text
        body: dict[str, Any] = answer.json()
        return body

    def wish(self, desired: str) -> None:
        answer = self.client.patch(f"/api/v1/workspaces/{self.id}", json={"desired_state": desired})
        assert answer.status_code == 200, answer.text

    def settle(self, phase: str) -> dict[str, Any]:
        def settled() -> dict[str, Any] | None:
            workspace = self.workspace()
            assert workspace["phase"] != "ERROR", workspace
            done = workspace["phase"] == phase and workspace["operation"] == "NONE"
            return workspace if done else None

        return wait_for(settled, f"{phase} after a crash", 90)

    def home(self) -> Path:
        (home,) = (self.system.data_dir / "volumes").glob(f"users/*/workspaces/{self.id}/home")
        return home

    def kill_everything_when(self, condition: Callable[[], object]) -> None:
        wait_for(condition, "the moment to kill", 60, every=0.002)
        self.system.kill9()
        wait_for(lambda: not kill_processes_of(self.system.data_dir), "everything to be dead", 30)
        self.system.start()
        self.client = self._client()


@pytest.fixture
def story(make_system: Callable[..., System]) -> Story:
    return Story(make_system(**FAST).start())


@pytest.mark.timeout(600)
def test_a_home_survives_kill_9_of_everything_at_ten_moments(story: Story) -> None:
    """Of an archive and of a restore by turns; the crash matrix has every step of both."""
    before = fill(story.home())
    total = FILES * FILE_SIZE
    progress = Progress(story.system)
    for moment in range(MOMENTS):
        threshold = total * moment // MOMENTS

        def reached(threshold: int = threshold) -> bool:
            if threshold == 0:
                return progress.is_working()
            return progress.bytes() >= threshold or not _busy(story)

        for number, wish in enumerate(("ARCHIVED", "STANDBY")):
            story.wish(wish)
            if moment % 2 == number:
                story.kill_everything_when(reached)
            story.settle(wish)
        assert tree_hash(story.home()) == before, f"moment {moment}"


def _busy(story: Story) -> bool:
    return str(story.workspace()["operation"]) != "NONE"


def test_kill_9_right_after_the_wish_and_right_before_the_end(story: Story) -> None:
    """The moments that progress does not show: the claim, the commit of the archive, the deletion."""
    before = fill(story.home())
    data = story.system.data_dir
    volumes, archives = data / "volumes", data / "archives"
    moments: dict[str, Callable[[], object]] = {
        "claimed": lambda: _busy(story),
        "a new object": lambda: set(archives.glob("*/*/home.tar.zst")) - earlier,
        "a new .meta": lambda: set(archives.glob("*/*/.meta")) - earlier,
        "the volume goes": lambda: not any(volumes.glob("users/*/workspaces/*/home")),
    }
    for name, moment in moments.items():
        earlier = set(archives.rglob("*"))
        story.wish("ARCHIVED")
        story.kill_everything_when(moment)
        story.settle("ARCHIVED")
        story.wish("STANDBY")
        story.settle("STANDBY")
        assert tree_hash(story.home()) == before, name
