"""Damaged and hostile archives: a restore reports them and touches nothing."""

import hashlib
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import pytest
import zstandard

from codehub.domain.observation import ArchiveFact, JobFact, JobState
from codehub.domain.states import ErrorReason
from codehub.storage.archive.archives import meta_text
from codehub.storage.jobs.program import SPEC
from codehub.storage.jobs.report import Reporter, read_ended
from codehub.storage.jobs.spec import JobSpec, dump_spec
from codehub.storage.jobs.work import JobContext, run_job
from tests.integration.storage.conftest import KEY, StorageFixture, storage_at
from tests.s3 import new_store_url, use
from tests.selection import sample
from tests.services import run
from tests.trees import tree_hash
from tests.unit.storage.test_restore_check import HOME, entry, stream

CORRUPTED, LOST = ErrorReason.ArchiveCorrupted, ErrorReason.DataLost


class Archive:
    """The two files of an archive, to damage and to repair."""

    def __init__(self, folder: Path) -> None:
        self.object, self.meta = folder / "home.tar.zst", folder / ".meta"
        self._good = (self.object.read_bytes(), self.meta.read_bytes())

    def repair(self) -> None:
        for path, content in zip((self.object, self.meta), self._good, strict=True):
            path.write_bytes(content)

    def replace(
        self, tar: bytes, *, unpacked: int = 1 << 20, entries: int = 100, behind: bytes = b""
    ) -> None:
        """Store a stream with a matching `.meta`, so that only its content can be refused."""
        packed = zstandard.ZstdCompressor().compress(tar) + behind
        self.object.write_bytes(packed)
        digest = hashlib.sha256(packed).hexdigest()
        self.meta.write_bytes(
            meta_text(ArchiveFact("w1", "a1", "w1/a1/home.tar.zst", digest, len(packed), unpacked, entries))
        )

    def declare(self, field: str, value: object) -> None:
        """Change one field of the `.meta`."""
        changed, count = re.subn(rf"({field}[=:])\w+", rf"\g<1>{value}", self.meta.read_text())
        assert count == 1
        self.meta.write_text(changed)

    def blank(self) -> None:
        self.object.write_bytes(bytes(self.object.stat().st_size))

    def flip(self) -> None:
        content = bytearray(self.object.read_bytes())
        content[len(content) // 2] ^= 1
        self.object.write_bytes(content)


@dataclass(frozen=True)
class Case:
    damage: Callable[[Archive], object]
    reason: ErrorReason
    message: str


def hostile(*entries: tuple[tarfile.TarInfo, bytes]) -> Callable[[Archive], object]:
    return lambda archive: archive.replace(stream(HOME, *entries))


EVIL = Path(f"/tmp/evil-{os.getpid()}")
FOLDER = entry("./d/", tarfile.DIRTYPE)
LINK = entry("./d", tarfile.SYMTYPE, linkname="/tmp")
FRAME = zstandard.ZstdCompressor().compress(b"more")
NULL = entry("./null", tarfile.CHRTYPE, devmajor=1, devminor=3)
MANY = stream(HOME, *(entry(f"./{number}") for number in range(20)))

DAMAGED = {
    "object missing": Case(lambda a: a.object.unlink(), LOST, "is not in the store"),
    "meta missing": Case(lambda a: a.meta.unlink(), LOST, "without its .meta"),
    "meta empty": Case(lambda a: a.meta.write_bytes(b""), CORRUPTED, "malformed"),
    "meta garbage": Case(lambda a: a.meta.write_bytes(os.urandom(200)), CORRUPTED, "malformed"),
    "meta of another size": Case(lambda a: a.declare("bytes", 7), CORRUPTED, "where its .meta says 7"),
    "meta of a smaller home": Case(lambda a: a.declare("unpacked", 512), CORRUPTED, "more bytes than"),
    "meta of a larger home": Case(lambda a: a.declare("unpacked", 10**12), CORRUPTED, "what its .meta says"),
    "meta of fewer entries": Case(lambda a: a.declare("entries", 3), CORRUPTED, "more entries than"),
    "meta of more entries": Case(lambda a: a.declare("entries", 999), CORRUPTED, "what its .meta says"),
    "meta of another sha": Case(lambda a: a.declare("sha256", "0" * 64), CORRUPTED, "not the one"),
    "truncated": Case(lambda a: os.truncate(a.object, 1000), CORRUPTED, "has 1000 bytes where"),
    "bit flipped": Case(Archive.flip, CORRUPTED, "archive"),
    "not zstd": Case(Archive.blank, CORRUPTED, "cannot be decompressed"),
}  # fmt: skip

HOSTILE = {
    "absolute path": Case(hostile(entry(f"{EVIL}", content=b"x")), CORRUPTED, "not below the home"),
    "dot dot": Case(hostile(entry(f"./../../..{EVIL}", content=b"x")), CORRUPTED, "unsafe component"),
    "hard link out": Case(hostile(entry("./l", tarfile.LNKTYPE, linkname="/etc/passwd")), CORRUPTED, "home"),
    "through a symlink": Case(hostile(LINK, entry(f"./d/{EVIL.name}")), CORRUPTED, "not in a directory"),
    "symlink for a directory": Case(hostile(FOLDER, LINK), CORRUPTED, "comes twice"),
    "device": Case(hostile(NULL), CORRUPTED, "a pipe or a device"),
    "pipe": Case(hostile(entry("./pipe", tarfile.FIFOTYPE)), CORRUPTED, "a pipe or a device"),
    "bomb": Case(hostile(entry("./zeros", content=bytes(1 << 28))), CORRUPTED, "more bytes than it declares"),
    "too many entries": Case(lambda a: a.replace(MANY, entries=10), CORRUPTED, "more entries than"),
    "a second frame": Case(lambda a: a.replace(stream(HOME), behind=FRAME), CORRUPTED, "data after"),
}  # fmt: skip
CASES = DAMAGED | HOSTILE


@dataclass(frozen=True)
class ArchivedHome:
    """Home that exists only as an archive, with the hash of its content."""

    storage: StorageFixture
    archive: Archive
    sha256: str
    tree: str

    @classmethod
    def prepared(cls, storage: StorageFixture) -> "ArchivedHome":
        run(storage.initialise())
        run(storage.make_home())
        tree = tree_hash(storage.home)
        context = JobContext(Reporter(storage.root), storage.root)
        done = run_job(storage.archive_job(), context)
        assert done.archive is not None
        run_job(storage.delete_job(), context)
        return cls(storage, Archive(storage.archives_root / "w1/a1"), done.archive.sha256, tree)

    def run(self, job_id: str, spec: JobSpec) -> JobFact:
        """Run a job as a process."""
        directory = self.storage.root / "jobs" / job_id
        directory.mkdir(parents=True)
        (directory / SPEC).write_bytes(dump_spec(spec))
        subprocess.run(
            [sys.executable, "-m", "codehub.storage.jobs.program", directory],
            capture_output=True,
            check=False,
        )
        return read_ended(directory)


@pytest.fixture(scope="module")
def archived(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ArchivedHome]:
    storage = storage_at(tmp_path_factory.mktemp("stored"))
    with pytest.MonkeyPatch.context() as monkeypatch:
        if request.param == "s3":
            storage.server = request.getfixturevalue("s3_server")
            storage.location = replace(storage.location, archive_url=new_store_url())
            use(storage.server.environment(), monkeypatch)
        yield ArchivedHome.prepared(storage)


# The content of a stream does not depend on the store.
@pytest.mark.parametrize(
    ("archived", "name"),
    [
        *sample(list(product(["directory", "s3"], DAMAGED)), 8, "damaged archives"),
        *sample(list(product(["directory"], HOSTILE)), 4, "hostile archives"),
    ],
    indirect=["archived"],
)
def test_a_corrupted_archive_is_refused_and_a_repaired_one_is_restored(
    archived: ArchivedHome, name: str
) -> None:
    case, storage = CASES[name], archived.storage
    committed = None if name in HOSTILE else archived.sha256
    case.damage(archived.archive)
    try:
        fact = archived.run(name.replace(" ", "-"), storage.restore_job(sha256=committed))
    finally:
        archived.archive.repair()
    assert (fact.state, fact.reason) == (JobState.FAILED, case.reason), fact
    assert case.message in fact.message
    assert run(storage.volumes.status(KEY)) is None
    assert storage.beside_home() == {".lock", ".fence"}
    assert not EVIL.exists()

    context = JobContext(Reporter(storage.root), storage.root)
    run_job(storage.restore_job(sha256=archived.sha256), context)
    assert tree_hash(storage.home) == archived.tree
    restored = run(storage.volumes.status(KEY))
    assert restored is not None
    run_job(storage.delete_job(restored.generation), context)
