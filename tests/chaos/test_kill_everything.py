"""kill -9 of CodeHub, PostgreSQL, Redis and jobs in the middle of an archive and of a restore."""

import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.selection import sample
from tests.services import System, kill_processes_of, processes_of
from tests.trees import chown_to_home_owner, make_tree, tree_hash
from tests.waiting import wait_for

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
TENTHS_OF_AN_ARCHIVE, TENTHS_OF_A_RESTORE = range(0, 10, 2), range(1, 10, 2)
FILES, FILE_SIZE = 32, 1 << 20
RECORD = 256 << 10
"""Bytes that tar reads or writes between two checkpoints."""
TARS = 2
"""Most processes among which a restore divides its files, so that each unpacks half of them."""


class StoppableTar:
    """`tar` for storage jobs that stops after a given number of bytes until it is killed."""

    def __init__(self, directory: Path) -> None:
        self._stop_at, self._stopped = directory / "stop-at", directory / "stopped"
        tar, stop = shutil.which("tar"), f"touch {self._stopped}; exec sleep infinity"
        lines = (
            "#!/bin/sh",
            f'[ -e {self._stop_at} ] || exec {tar} "$@"',
            f'exec {tar} --checkpoint=$(cat {self._stop_at}) --checkpoint-action=exec="{stop}" "$@"',
        )
        (directory / "tar").write_text("\n".join(lines))
        (directory / "tar").chmod(0o755)

    def stop_after(self, bytes_: int) -> None:
        self._stop_at.write_text(f"{max(1, bytes_ // RECORD)}\n")

    def has_stopped(self) -> bool:
        return self._stopped.exists()

    def reset(self) -> None:
        """Let the next tar run to its end. One that has stopped stays stopped."""
        self._stop_at.unlink(missing_ok=True)
        self._stopped.unlink(missing_ok=True)


class FilledWorkspace:
    """Workspace of a whole system, with a home whose hash is known."""

    def __init__(self, system: System, tar: StoppableTar) -> None:
        self.system, self.tar = system, tar
        self.client = self._client()
        made = self.client.post("/api/v1/workspaces", json={"name": "chaos", "desired_state": "STANDBY"})
        assert made.status_code == 201, made.text
        self.id = made.json()["id"]
        self.settle("STANDBY")
        self.home_hash = self._fill()

    def _client(self) -> httpx.Client:
        return self.system.client(password=FAST["ADMIN_PASSWORD"])

    def _fill(self) -> str:
        """Put every kind of entry into the home, and many bytes; return its hash."""
        make_tree(self.home(), seed=7)
        for number in range(FILES):
            (self.home() / f"noise-{number}").write_bytes(os.urandom(FILE_SIZE))
        chown_to_home_owner(self.home())
        return tree_hash(self.home())

    def get(self) -> dict[str, Any]:
        answer = self.client.get(f"/api/v1/workspaces/{self.id}")
        assert answer.status_code == 200, answer.text
        body: dict[str, Any] = answer.json()
        return body

    def set_desired_state(self, desired: str) -> None:
        answer = self.client.patch(f"/api/v1/workspaces/{self.id}", json={"desired_state": desired})
        assert answer.status_code == 200, answer.text

    def settle(self, phase: str) -> None:
        def settled() -> bool:
            workspace = self.get()
            assert workspace["phase"] != "ERROR", workspace
            return bool(workspace["phase"] == phase and workspace["operation"] == "NONE")

        wait_for(settled, f"the workspace to be {phase}")

    def home(self) -> Path:
        (home,) = (self.system.data_dir / "volumes").glob(f"users/*/workspaces/{self.id}/home")
        return home

    def kill_everything_when(self, condition: Callable[[], object]) -> None:
        """Wait for the condition and kill every process.

        Jobs are stopped first, or they might finish.
        """
        wait_for(condition, "the moment to kill", every=0.002)
        for pid in processes_of(self.system.data_dir / "jobs"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        self.system.kill9()
        wait_for(lambda: not kill_processes_of(self.system.data_dir), "every process to end")
        self.tar.reset()

    def unfinished_jobs(self) -> list[Path]:
        """Return the jobs that have not written their result."""
        jobs = {spec.parent for spec in self.system.data_dir.glob("jobs/[!.]*/spec.json")}
        return [job for job in jobs if not (job / "result.json").exists()]

    def start_again(self) -> None:
        self.client.close()
        self.system.start()
        self.client = self._client()

    def check_home(self) -> None:
        self.settle("STANDBY")
        assert tree_hash(self.home()) == self.home_hash


@pytest.fixture(scope="module")
def workspace() -> Iterator[FilledWorkspace]:
    with tempfile.TemporaryDirectory(prefix="ch-tar-") as directory:
        tar = StoppableTar(Path(directory))
        system = System({**FAST, "PATH": f"{directory}:{os.environ['PATH']}"})
        try:
            yield FilledWorkspace(system.start(), tar)
        finally:
            system.close()


@pytest.mark.parametrize("tenths", sample(TENTHS_OF_AN_ARCHIVE, 1, "archives to kill"))
def test_a_home_survives_kill_9_of_everything_during_an_archive(
    workspace: FilledWorkspace, tenths: int
) -> None:
    workspace.tar.stop_after(FILES * FILE_SIZE * tenths // 10)
    workspace.set_desired_state("ARCHIVED")
    kill_in_the_middle(workspace)
    workspace.start_again()
    workspace.settle("ARCHIVED")
    workspace.set_desired_state("STANDBY")
    workspace.check_home()


@pytest.mark.parametrize("tenths", sample(TENTHS_OF_A_RESTORE, 1, "restores to kill"))
def test_a_home_survives_kill_9_of_everything_during_a_restore(
    workspace: FilledWorkspace, tenths: int
) -> None:
    workspace.set_desired_state("ARCHIVED")
    workspace.settle("ARCHIVED")
    workspace.tar.stop_after(FILES * FILE_SIZE * tenths // 10 // TARS)
    workspace.set_desired_state("STANDBY")
    kill_in_the_middle(workspace)
    workspace.start_again()
    workspace.check_home()


def kill_in_the_middle(workspace: FilledWorkspace) -> None:
    workspace.kill_everything_when(workspace.tar.has_stopped)
    assert len(workspace.unfinished_jobs()) == 1


def _claimed(workspace: FilledWorkspace, _: set[Path]) -> object:
    return workspace.get()["operation"] != "NONE"


def _new_object(workspace: FilledWorkspace, earlier: set[Path]) -> object:
    return set(workspace.system.data_dir.glob("archives/*/*/home.tar.zst")) - earlier


def _new_meta(workspace: FilledWorkspace, earlier: set[Path]) -> object:
    return set(workspace.system.data_dir.glob("archives/*/*/.meta")) - earlier


def _volume_deleted(workspace: FilledWorkspace, _: set[Path]) -> object:
    return not any(workspace.system.data_dir.glob("volumes/users/*/workspaces/*/home"))


MOMENTS = (_claimed, _new_object, _new_meta, _volume_deleted)


@pytest.mark.parametrize(
    "moment", sample(MOMENTS, 1, "moments of an archive"), ids=lambda moment: moment.__name__
)
def test_a_home_survives_kill_9_at_moments_without_progress(
    workspace: FilledWorkspace, moment: Callable[[FilledWorkspace, set[Path]], object]
) -> None:
    """These moments are the claim, the commit of the archive, and the deletion."""
    earlier = set(workspace.system.data_dir.glob("archives/*/*/*"))
    if moment is _claimed:
        workspace.tar.stop_after(0)  # or the operation might be over before it is seen
    workspace.set_desired_state("ARCHIVED")
    workspace.kill_everything_when(lambda: moment(workspace, earlier))
    workspace.start_again()
    workspace.settle("ARCHIVED")
    workspace.set_desired_state("STANDBY")
    workspace.check_home()
