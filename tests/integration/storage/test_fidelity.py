"""Homes come back from real jobs as they were, with every kind of entry and very many of them."""

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from codehub.storage.jobs.program import SPEC
from codehub.storage.jobs.spec import JobSpec, dump_spec
from tests.integration.storage.conftest import FIRST, KEY, StorageFixture, small_disk, storage_at
from tests.selection import EVERYTHING
from tests.services import short_temp_dir
from tests.trees import (
    IN_UTF_8,
    make_huge_file,
    make_many_files,
    make_python_environment,
    make_special_files,
    make_tree,
    snapshot,
)

MANY = 200_000 if EVERYTHING else 4_000
HUGE = 2 << 30
NOBODY = 65534
AS_NOBODY = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--"]
FACTS = r"%P %y %m %U %G %T@ %s %n %l\0"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make and keep everything")
async def test_every_kind_of_entry_and_very_many_come_back_as_they_were(tmp_path: Path) -> None:
    async with small_disk(tmp_path / "disk", megabytes=4096):
        storage = storage_at(tmp_path / "disk")
        await storage.initialise()
        await storage.volumes.provision(KEY, FIRST, epoch=1, uid=None)
        left_out = fill(storage.home)
        odd, many = odd_facts(storage.home), many_facts(storage.home)
        assert len(many) > 2 * MANY
        fact = await storage.done("archive", storage.archive_job())
        named = ", ".join(f"./special/{name}" for name in left_out)
        assert fact.left_out == (
            f"left out 1 socket, 2 pipes and 2 devices: they cannot be archived ({named})"
        )

        await storage.done("delete", storage.delete_job())
        await storage.done("restore", storage.restore_job())
        check(storage.home, odd, many)

        subprocess.run(["rm", "-rf", storage.home], check=True)
        open_with_plain_tools(storage.archives_root / "w1/a1/home.tar.zst", tmp_path / "disk/plain")
        check(tmp_path / "disk/plain", odd, many)


def fill(home: Path) -> list[str]:
    """Return the names of what archives leave out."""
    make_tree(home / "odd", seed=11)
    make_huge_file(home / "odd" / "huge", HUGE)
    make_python_environment(home / "odd" / "venv")
    make_many_files(home / "many", MANY)
    return make_special_files(home / "special")


def odd_facts(home: Path) -> dict[bytes, str]:
    return snapshot(home / "odd")


def many_facts(home: Path) -> list[bytes]:
    """Return what `find` shows of each entry, and the content: snapshots would take too long."""
    seen = subprocess.run(["find", "many", "-printf", FACTS], cwd=home, check=True, stdout=subprocess.PIPE)
    command = "find many -type f -print0 | xargs -0 sha256sum -z"
    content = subprocess.run(["bash", "-c", command], cwd=home, check=True, stdout=subprocess.PIPE)
    return sorted(seen.stdout.split(b"\0") + content.stdout.split(b"\0"))


def check(home: Path, odd: dict[bytes, str], many: list[bytes]) -> None:
    assert odd_facts(home) == odd
    assert many_facts(home) == many
    assert (home / "odd/huge").stat().st_size == HUGE
    assert (home / "odd/huge").stat().st_blocks * 512 < 1 << 20
    assert (home / "odd/locked").stat().st_mode & 0o777 == 0
    assert (home / "odd/venv/bin/python").is_symlink()
    assert list((home / "special").iterdir()) == []


def open_with_plain_tools(archive: Path, target: Path) -> None:
    target.mkdir()
    command = 'zstd -dcq "$1" | tar -x -p --numeric-owner --xattrs --xattrs-include="*" -C "$2"'
    subprocess.run(["bash", "-o", "pipefail", "-c", command, "-", archive, target], env=IN_UTF_8, check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="the other tests run as an ordinary user already")
async def test_an_ordinary_users_home_comes_back(nobodys_storage: StorageFixture) -> None:
    storage = nobodys_storage
    as_nobody("-c", "import sys, tests.trees as t; t.make_tree(t.Path(sys.argv[1]), 12)", storage.home)
    as_nobody(
        "-c",
        "import sys, tests.trees as t; t.make_python_environment(t.Path(sys.argv[1]))",
        storage.home / "venv",
    )
    before = snapshot(storage.home)
    as_nobody(
        "-c", "import sys, tests.trees as t; t.make_special_files(t.Path(sys.argv[1]))", storage.home / "s"
    )
    assert "left out 1 socket and 2 pipes: they" in nobodys_job(storage, storage.archive_job())["message"]

    assert nobodys_job(storage, storage.delete_job())["ok"]
    assert nobodys_job(storage, storage.restore_job())["ok"]
    (storage.home / "s").rmdir()
    after = snapshot(storage.home)
    assert {path for path in before | after if before.get(path) != after.get(path)} == {b"."}
    assert len(before) >= 100


@pytest.mark.skipif(os.geteuid() != 0, reason="the other tests run as an ordinary user already")
async def test_what_a_user_cannot_read_fails_the_archive(nobodys_storage: StorageFixture) -> None:
    (nobodys_storage.home / "closed").mkdir(mode=0)
    result = nobodys_job(nobodys_storage, nobodys_storage.archive_job())
    assert not result["ok"]
    assert "closed: Cannot open: Permission denied" in result["message"]
    assert await nobodys_storage.store.list() == []


@pytest.fixture
async def nobodys_storage() -> AsyncIterator[StorageFixture]:
    """Storage with an empty home that belongs to an ordinary user."""
    root = short_temp_dir()
    try:
        if as_nobody("-c", "import codehub.storage.jobs.program", check=False).returncode:
            pytest.skip("an ordinary user cannot run this Python")
        storage = storage_at(root)
        await storage.initialise()
        await storage.volumes.provision(KEY, FIRST, epoch=1, uid=None)
        subprocess.run(["chown", "-R", f"{NOBODY}:{NOBODY}", root], check=True)
        yield storage
    finally:
        subprocess.run(["rm", "-rf", root], check=True)


def as_nobody(*arguments: str | Path, check: bool = True) -> subprocess.CompletedProcess[bytes]:
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.run([*AS_NOBODY, sys.executable, *arguments], check=check, env=environment, cwd="/")


def nobodys_job(storage: StorageFixture, spec: JobSpec) -> dict[str, Any]:
    """Run a job as that user, and return its result."""
    directory = storage.root / "jobs" / spec.kind
    directory.mkdir(parents=True)
    (directory / SPEC).write_bytes(dump_spec(spec))
    subprocess.run(["chown", "-R", f"{NOBODY}:{NOBODY}", storage.root / "jobs"], check=True)
    as_nobody("-m", "codehub.storage.jobs.program", directory, check=False)
    found: dict[str, Any] = json.loads((directory / "result.json").read_bytes())
    return found
