"""The data directory is checked, and claimed once."""

from pathlib import Path

import pytest

from codehub.cli import data_directory
from codehub.cli.errors import CommandError
from codehub.domain.storage_root import StorageRoot
from codehub.storage.errors import Unobservable
from codehub.storage.installation_marker import MARKER
from codehub.storage.jobs.spec import StorageLocation


class Claims:
    """Record of claims in memory."""

    def __init__(self) -> None:
        self.made: set[StorageRoot] = set()

    async def unclaimed(self) -> set[StorageRoot]:
        return set(StorageRoot) - self.made

    async def record(self, root: StorageRoot) -> None:
        self.made.add(root)


@pytest.fixture
def claims() -> Claims:
    return Claims()


async def settle(data_dir: Path, installation_id: str, claims: Claims) -> None:
    location = StorageLocation(data_dir / "volumes", f"file://{data_dir}/archives", installation_id)
    await data_directory.claim_or_check_storage(data_dir, location, claims)


def test_a_new_directory_is_made_passable_but_not_readable(tmp_path: Path) -> None:
    data_dir = data_directory.prepare(tmp_path / "new" / "codehub")
    assert data_dir.stat().st_mode & 0o777 == 0o711
    assert (data_dir / "logs").stat().st_mode & 0o777 == 0o700
    assert (data_dir / "jobs").stat().st_mode & 0o777 == 0o700


def test_a_directory_with_other_content_is_rejected(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(CommandError, match=r"holds thesis.tex, which is not CodeHub's"):
        data_directory.prepare(tmp_path)
    assert tmp_path.stat().st_mode & 0o777 == 0o700
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_file_is_not_a_data_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CommandError, match="is not a directory"):
        data_directory.prepare(tmp_path / "file")


def test_a_start_that_was_killed_halfway_can_be_repeated(tmp_path: Path) -> None:
    for name in ("postgres.new", "run", "volumes"):
        (tmp_path / name).mkdir()
    assert data_directory.prepare(tmp_path) == tmp_path


async def test_the_first_start_marks_volumes_and_archives(tmp_path: Path, claims: Claims) -> None:
    data_dir = data_directory.prepare(tmp_path)
    await settle(data_dir, "installation-a", claims)
    assert data_directory.installation_id(data_dir) == "installation-a"
    for root in ("volumes", "archives"):
        assert (data_dir / root / MARKER).read_text().strip() == "installation-a"


async def test_a_first_start_that_was_killed_before_its_end_is_done_again(
    tmp_path: Path, claims: Claims
) -> None:
    data_dir = data_directory.prepare(tmp_path)
    await settle(data_dir, "installation-a", claims)
    (data_dir / data_directory.INSTALLATION_ID).unlink()
    await settle(data_dir, "installation-a", claims)
    assert data_directory.installation_id(data_dir) == "installation-a"


async def test_an_empty_volumes_directory_is_not_claimed_a_second_time(
    tmp_path: Path, claims: Claims
) -> None:
    """It is a mount point without its disk. If CodeHub claimed it, every home would seem lost."""
    data_dir = data_directory.prepare(tmp_path)
    await settle(data_dir, "installation-a", claims)
    (data_dir / "volumes" / MARKER).unlink()
    await settle(data_dir, "installation-a", claims)
    assert not (data_dir / "volumes" / MARKER).exists()


async def test_the_database_remembers_the_claim_where_the_data_directory_has_no_id(
    tmp_path: Path, claims: Claims
) -> None:
    data_dir = data_directory.prepare(tmp_path)
    await settle(data_dir, "installation-a", claims)
    (data_dir / "volumes" / MARKER).unlink()
    (data_dir / data_directory.INSTALLATION_ID).unlink()
    await settle(data_dir, "installation-a", claims)
    assert not (data_dir / "volumes" / MARKER).exists()


async def test_a_data_directory_of_an_earlier_version_counts_as_claimed(
    tmp_path: Path, claims: Claims
) -> None:
    data_dir = data_directory.prepare(tmp_path)
    (data_dir / data_directory.INSTALLATION_ID).write_text("installation-a\n")
    await settle(data_dir, "installation-a", claims)
    assert claims.made == set(StorageRoot)
    assert not (data_dir / "volumes").exists()


async def test_another_installations_volumes_are_refused(tmp_path: Path, claims: Claims) -> None:
    data_dir = data_directory.prepare(tmp_path)
    (data_dir / "volumes").mkdir()
    (data_dir / "volumes" / MARKER).write_text("installation-b\n")
    with pytest.raises(Unobservable, match="another CodeHub installation"):
        await settle(data_dir, "installation-a", claims)
    assert data_directory.installation_id(data_dir) is None


async def test_a_database_of_another_installation_is_refused(tmp_path: Path, claims: Claims) -> None:
    data_dir = data_directory.prepare(tmp_path)
    await settle(data_dir, "installation-a", claims)
    with pytest.raises(CommandError, match="not of one CodeHub"):
        await settle(data_dir, "installation-b", claims)
