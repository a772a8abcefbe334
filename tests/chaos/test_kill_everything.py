"""kill -9 of everything (CodeHub, PostgreSQL, Redis, jobs) in the middle of an archive and of a restore."""

import contextlib
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.services import System, kill_processes_of, processes_of, wait_for
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
IN_THE_MIDDLE = 7
"""Of so many kills at least: the progress of a restore is told too seldom to come in time for each."""
FILES, FILE_SIZE = 40, 4 << 20


def fill(home: Path) -> str:
    """A home that takes a moment to move, with every kind of entry; returns its hash."""
    make_tree(home, seed=7)
    for number in range(FILES):
        (home / f"noise-{number}").write_bytes(os.urandom(FILE_SIZE))
    return tree_hash(home)


class Jobs:
    """The storage jobs that have begun since: how far they have come is the moment to kill at."""

    def __init__(self, system: System) -> None:
        self._directory = system.data_dir / "jobs"
        self._earlier = set(self._directory.glob("*"))
        self._one_has_begun = False

    def have_begun(self) -> bool:
        """Also when all that has begun is over, and forgotten: nothing more will move."""
        self._one_has_begun = self._one_has_begun or bool(self._begun())
        return self._one_has_begun

    def have_moved(self, bytes_: int) -> bool:
        """A number that only grows; also true when all have ended, for it will not grow any more."""
        return self._moved() >= bytes_ or not self.are_unfinished()

    def are_unfinished(self) -> bool:
        """Whether one has not said how it ended: of the dead, whether one was killed in the middle of it."""
        return any(not (job / "result.json").exists() for job in self._begun())

    def _moved(self) -> int:
        moved = [0]
        for job in self._begun():
            with contextlib.suppress(OSError, ValueError):
                moved.append(int(json.loads((job / "progress.json").read_text())["bytes"]))
        return max(moved)

    def _begun(self) -> set[Path]:
        return {spec.parent for spec in self._directory.glob("[!.]*/spec.json")} - self._earlier


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
        """Jobs are stopped at that moment: they die last, and would come to their end meanwhile."""
        wait_for(condition, "the moment to kill", 60, every=0.002)
        for pid in processes_of(self.system.data_dir / "jobs"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        self.system.kill9()
        wait_for(lambda: not kill_processes_of(self.system.data_dir), "everything to be dead", 30)

    def start_again(self) -> None:
        self.system.start()
        self.client = self._client()


@pytest.fixture
def story(make_system: Callable[..., System]) -> Story:
    return Story(make_system(**FAST).start())


@pytest.mark.timeout(600)
def test_a_home_survives_kill_9_of_everything_at_ten_moments(
    story: Story, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of an archive and of a restore by turns; the crash matrix has every step of both."""
    before = fill(story.home())
    in_the_middle = 0
    for moment in range(MOMENTS):
        for number, wish in enumerate(("ARCHIVED", "STANDBY")):
            jobs = Jobs(story.system)
            story.wish(wish)
            if moment % 2 == number:
                in_the_middle += _kill_in_the_middle(story, jobs, FILES * FILE_SIZE * moment // MOMENTS)
            story.settle(wish)
        assert tree_hash(story.home()) == before, f"moment {moment}"
    told = f"{in_the_middle} of {MOMENTS} kills fell into the middle of a job"
    with capsys.disabled():
        print(f"\n{told}")
    assert in_the_middle >= IN_THE_MIDDLE, told


def _kill_in_the_middle(story: Story, jobs: Jobs, moved: int) -> bool:
    """Whether it was the middle, as the dead show."""
    story.kill_everything_when(lambda: jobs.have_begun() and jobs.have_moved(moved))
    unfinished = jobs.are_unfinished()
    story.start_again()
    return unfinished


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
        story.start_again()
        story.settle("ARCHIVED")
        story.wish("STANDBY")
        story.settle("STANDBY")
        assert tree_hash(story.home()) == before, name
