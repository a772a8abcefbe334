"""An upgraded CodeHub adopts the running workspaces and storage jobs of the former version."""

import json
import os
import shlex
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.crash_matrix.installation import IDE
from tests.services import System, processes_of
from tests.waiting import wait_for
from tests.workspace_client import WorkspaceClient

FORMER_COMMIT = "ed51c6f29c746fd9c0de6fd02b5f4e2445be01b9"
"""The last commit in which packages and modules had their former names."""
ROOT = Path(__file__).parents[2]
MARK = "an IDE that an upgrade leaves alone"
SETTINGS = {
    "APPS_DOMAIN": "",
    "ARCHIVES_AT_ONCE": "2",
    "COORDINATOR_IDLE_INTERVAL": "1",
    "DISK_RESERVE_BYTES": "0",
    "GATEWAY_WORKERS": "1",
    "LIMITS_MAX_RUNNING_PER_USER": "9",
    "TTL_STANDBY_SECONDS": "0",
    "TTL_ARCHIVE_SECONDS": "0",
}


class UpgradedSystem(System):
    """System that runs the former version until `upgrade`."""

    def __init__(self, tree: Path, environment: dict[str, str]) -> None:
        super().__init__(environment)
        self._tree: Path | None = tree

    def environment(self) -> dict[str, str]:
        if self._tree is None:
            return super().environment()
        # Without PYTHONSAFEPATH the tests' own checkout, the working directory, would come first.
        return super().environment() | {"PYTHONPATH": str(self._tree), "PYTHONSAFEPATH": "1"}

    def upgrade(self) -> None:
        self._tree = None
        self.start()


class BlockingTar:
    """`tar` for storage jobs that waits until the test lets it begin."""

    def __init__(self, directory: Path) -> None:
        self._waiting, self._may_begin = directory / "waiting", directory / "may-begin"
        self._waiting.mkdir()
        self._may_begin.mkdir()
        begin = shlex.quote(str(self._may_begin))
        lines = (
            "#!/bin/sh",
            f'touch {shlex.quote(str(self._waiting))}/"$1"',
            f'until [ -e {begin}/"$1" ]; do sleep 0.05; done',
            f'exec {shutil.which("tar")} "$@"',
        )
        (directory / "tar").write_text("\n".join(lines))
        (directory / "tar").chmod(0o755)

    def is_waiting(self, mode: str) -> bool:
        return (self._waiting / mode).exists()

    def let(self, mode: str, *, begin: bool = True) -> None:
        if begin:
            (self._may_begin / mode).touch()
        else:
            (self._may_begin / mode).unlink()
            (self._waiting / mode).unlink(missing_ok=True)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Unpack the package of the former version."""
    directory = tmp_path_factory.mktemp("former")
    archive = directory / "former.tar"
    done = subprocess.run(
        ["git", "-C", str(ROOT), "archive", "--output", str(archive), FORMER_COMMIT, "codehub"],
        capture_output=True,
    )
    if done.returncode:
        reason = done.stderr.decode()[-200:]
        pytest.skip(f"the commit {FORMER_COMMIT[:7]} is missing: git fetch --unshallow ({reason})")
    with tarfile.open(archive) as packed:
        packed.extractall(directory, filter="data")
    return directory


@pytest.fixture
def tar(tmp_path: Path) -> BlockingTar:
    return BlockingTar(tmp_path)


@pytest.fixture
def system(tree: Path, tar: BlockingTar, tmp_path: Path) -> Iterator[UpgradedSystem]:
    images = tmp_path / "images.toml"
    command = json.dumps(["/usr/bin/python3", "-c", IDE, "{socket}", MARK])
    images.write_text(f'[[image]]\nname = "tiny"\nready_path = "/"\nprocess = {command}\n')
    paths = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "IMAGES_FILE": str(images)}
    made = UpgradedSystem(tree, SETTINGS | paths)
    try:
        made.start()
        yield made
    finally:
        made.close()


def ides() -> list[int]:
    return [
        int(process.name)
        for process in Path("/proc").glob("[0-9]*")
        if MARK.encode() in _command_line(process).split(b"\0")
    ]


def _command_line(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def jobs_of(system: System) -> list[int]:
    return [pid for pid in processes_of(system.data_dir / "jobs") if _is_job(pid)]


def _is_job(pid: int) -> bool:
    return any(
        word.startswith(b"codehub.storage.") for word in _command_line(Path(f"/proc/{pid}")).split(b"\0")
    )


def operation_of(owner: WorkspaceClient) -> tuple[Any, ...]:
    now = owner.workspace()
    return now["operation"], now["error_count"]


def test_running_workspaces_and_jobs_survive_an_upgrade(system: UpgradedSystem, tar: BlockingTar) -> None:
    running = WorkspaceClient(system)
    archived, restored = (WorkspaceClient(system, state="STANDBY", client=running.client) for _ in range(2))
    running.wait_for_phase("RUNNING")
    tar.let("--create")
    restored.wait_for_phase("STANDBY")
    restored.move_to("ARCHIVED")
    tar.let("--create", begin=False)
    archived.wait_for_phase("STANDBY")
    (archived.home / "work").write_text("precious")
    archived.set_desired_state("ARCHIVED")
    restored.set_desired_state("STANDBY")
    wait_for(lambda: tar.is_waiting("--create") and tar.is_waiting("--extract"), "both jobs to run")
    before = ides(), jobs_of(system), running.timeline_events()
    assert before[0] and len(before[1]) == 2

    system.kill9()
    system.upgrade()
    client = system.client()
    for owner in (running, archived, restored):
        owner.client = client
    assert (ides(), jobs_of(system), running.timeline_events()) == before
    assert operation_of(archived) == ("ARCHIVING", 0)

    tar.let("--create")
    archived.wait_for_phase("ARCHIVED")
    assert client.post(f"/api/v1/workspaces/{restored.id}/cancel").status_code == 200
    restored.wait_for_phase("ARCHIVED")
    wait_for(lambda: jobs_of(system) == [], "the job of the former version to be killed")
    tar.let("--extract")
    archived.move_to("STANDBY")
    assert (archived.home / "work").read_text() == "precious"

    running.wait_for_phase("RUNNING")
    assert client.get(f"/w/{running.id}/").text == "ok"
    refuses_what_the_former_version_cannot_do(running)
    assert ides() == before[0] and running.timeline_events() == before[2]
    running.move_to("STANDBY")
    assert ides() == []
    running.move_to("RUNNING")
    runs_commands(running)


def refuses_what_the_former_version_cannot_do(owner: WorkspaceClient) -> None:
    """Its keeper starts no commands, and its output is where the access part cannot read it."""
    url = f"/api/v1/workspaces/{owner.id}"
    refused = [
        owner.client.post(f"{url}/execs", json={"command": "true"}),
        owner.client.post(f"{url}/execs", json={"command": "true", "wake": True}),
        owner.client.get(f"{url}/files"),
        owner.client.get(f"{url}/files/tar"),
        owner.client.put(f"{url}/files/content", params={"path": "x"}, content=b"x"),
        owner.client.get(f"{url}/logs"),
    ]
    for answer in refused:
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "INVALID_STATE"), answer.text
        assert "older version of CodeHub started it" in answer.json()["error"]["message"]
        assert "restart it" in answer.json()["error"]["message"]
    assert [item["state"] for item in owner.client.get(f"{url}/execs").json()["items"]] == ["lost", "lost"]


def runs_commands(owner: WorkspaceClient) -> None:
    url = f"/api/v1/workspaces/{owner.id}"
    written = owner.client.put(f"{url}/files/content", params={"path": "file"}, content=b"written")
    assert written.status_code == 201, written.text
    made = owner.client.post(f"{url}/execs", json={"command": "cat file; exit 3"})
    assert made.status_code == 201, made.text
    command = f"{url}/execs/{made.json()['id']}"
    assert owner.client.get(f"{command}/output?follow=true").content == b"written"
    assert owner.client.get(command).json()["exit_code"] == 3
    assert owner.client.get(f"{url}/logs").status_code == 200
