"""Storage jobs: archive, restore, delete and clear a home (ADR 0003).

A job may be killed at any point and run again. It never damages the only copy of a home.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import xxhash

from codehub.domain.disk import Reserve, shortages
from codehub.domain.observation import ArchiveFact, Generation
from codehub.host.filesystem_sync import synced_filesystem
from codehub.storage.archive.archives import BlockingArchiveStore, checked_archive_key, parsed_archive_key
from codehub.storage.archive.open_object_store import directory_of
from codehub.storage.archive.size_limit import size_limit
from codehub.storage.child_processes import remove_tree
from codehub.storage.errors import (
    ArchiveMissing,
    CorruptedArchive,
    GenerationMismatch,
    InvalidKey,
    NoSpace,
    StoreTrouble,
    from_os_error,
)
from codehub.storage.jobs.report import Reporter
from codehub.storage.jobs.spec import (
    ArchiveJob,
    ClearJob,
    DeleteJob,
    EmptyArchiveJob,
    JobSpec,
    RestoreJob,
    StorageLocation,
)
from codehub.storage.tar.archive_stream import ArchiveStream
from codehub.storage.tar.tar_process import OnProgress
from codehub.storage.tar.unpack import unpack
from codehub.storage.volumes.changed_home import check_unchanged
from codehub.storage.volumes.free_space import free_space
from codehub.storage.volumes.new_home import make_new_home
from codehub.storage.volumes.workspace_directory import WorkspaceDirectory
from codehub.storage.volumes.workspace_lock import locked_workspace

# A start holds the lock only for a moment. If it stays locked longer, another job holds it.
_LOCK_WAIT = 10.0


@dataclass(frozen=True)
class JobOutcome:
    """Success of a job: its message, and the archive that it wrote or read."""

    message: str
    archive: ArchiveFact | None = None


@dataclass(frozen=True)
class JobContext:
    """Context of a running job: reporter, scratch directory, and locks that children inherit."""

    reporter: Reporter
    scratch: Path
    locks: list[int] = field(default_factory=list)


def run_job(spec: JobSpec, context: JobContext) -> JobOutcome:
    """Do what the spec asks for; raise StorageProblem if it fails."""
    directory = WorkspaceDirectory.of_key(spec.location.volumes_root, spec.home_store_key)
    if directory.workspace_id != spec.workspace_id:
        raise InvalidKey(f"{spec.home_store_key} is not the home of workspace {spec.workspace_id}")
    try:
        with _workspace_lock(directory, spec, context):
            match spec:
                case ArchiveJob():
                    return _archive(spec, directory, context)
                case EmptyArchiveJob():
                    return _archive_empty_home(spec, context)
                case RestoreJob():
                    return _restore(spec, directory, context)
                case DeleteJob():
                    return _delete(spec, directory, context)
                case ClearJob():
                    return _clear(spec, directory, context)
    except OSError as error:
        raise from_os_error(error, f"the {spec.kind} job of workspace {spec.workspace_id} failed") from error


@contextmanager
def _workspace_lock(directory: WorkspaceDirectory, spec: JobSpec, context: JobContext) -> Iterator[None]:
    with locked_workspace(directory, spec.location.installation_id, spec.epoch, wait=_LOCK_WAIT) as fd:
        context.locks.append(fd)
        try:
            yield
        finally:
            context.locks.remove(fd)


def _archive(spec: ArchiveJob, directory: WorkspaceDirectory, context: JobContext) -> JobOutcome:
    fact = directory.observe()
    if fact is None:
        raise GenerationMismatch("generation differs: there is no home to archive")
    if fact.generation != spec.generation:
        raise GenerationMismatch("generation differs: another home has replaced the expected one")
    store = directory_of(spec.location.archive_url)

    def progress(done: int, files: int) -> None:
        if store is not None:
            _check_free_space("archives", store, Reserve(spec.reserve))
        context.reporter.progress(done, files)

    archives = _archives(spec.location)
    return _store(archives, spec.workspace_id, spec.archive_op_id, directory.home, context, progress)


def _archive_empty_home(spec: EmptyArchiveJob, context: JobContext) -> JobOutcome:
    with tempfile.TemporaryDirectory(dir=context.scratch) as scratch:
        home = Path(scratch) / "home"
        make_new_home(home, spec.uid, spec.files)
        archives, progress = _archives(spec.location), context.reporter.progress
        return _store(archives, spec.workspace_id, spec.archive_op_id, home, context, progress)


def _store(
    archives: BlockingArchiveStore,
    workspace_id: str,
    archive_op_id: str,
    home: Path,
    context: JobContext,
    progress: OnProgress,
) -> JobOutcome:
    """Upload a home, verify the stored archive, and only then commit it by the `.meta`."""
    key = checked_archive_key(workspace_id, archive_op_id)
    try:
        complete = archives.find(workspace_id, archive_op_id)
    except CorruptedArchive:
        # The home still exists, so an archive that a crash corrupted can be made again.
        archives.remove(key)
        complete = None
    if complete is not None:
        return JobOutcome("the archive was already complete", complete)
    stream = ArchiveStream(home, context.locks, progress)
    confirmed = archives.upload(key, stream, lambda: size_limit(home, context.locks))
    fact = ArchiveFact(
        workspace_id, archive_op_id, key, stream.sha256, stream.bytes, stream.unpacked, stream.entries
    )
    context.reporter.left_out = stream.left_out.sentence()
    archives.flush(key)
    if not confirmed:
        _read_back(archives, fact, stream.fingerprint, context.reporter)
    archives.commit(fact)
    left_out = context.reporter.left_out
    stored = f"archived {fact.entries} entries in {fact.bytes} bytes"
    return JobOutcome(f"{stored}; {left_out}" if left_out else stored, fact)


def _read_back(
    archives: BlockingArchiveStore, fact: ArchiveFact, fingerprint: bytes, reporter: Reporter
) -> None:
    digest = xxhash.xxh3_128()
    moved = fact.unpacked
    if archives.size(fact.key) == fact.bytes:
        for chunk in archives.read(fact):
            digest.update(chunk)
            moved += len(chunk)
            reporter.progress(moved, fact.entries)
    if digest.digest() != fingerprint:
        raise StoreTrouble(f"the archive {fact.key} reads back differently from what was written")


def _restore(spec: RestoreJob, directory: WorkspaceDirectory, context: JobContext) -> JobOutcome:
    volume = directory.observe()
    if volume is not None and volume.generation is not None:
        if volume.generation.op_id == spec.op_id:
            return JobOutcome("the home was already restored")
        raise GenerationMismatch.found(volume.generation)
    # This job has the lock, so the job that made them is dead.
    for leftover in directory.leftovers("staging"):
        remove_tree(leftover, context.locks)
    archives = _archives(spec.location)
    fact = _find_archive(spec, archives)
    context.reporter.total = fact.unpacked
    staging = directory.staging(spec.op_id)
    staging.mkdir(mode=0o700)

    def progress(done: int, files: int) -> None:
        _check_free_space("homes", directory.path, Reserve(spec.reserve, spec.reserve_files))
        context.reporter.progress(done, files)

    try:
        with synced_filesystem(staging):
            foreign = unpack(archives.read(fact), fact, staging, context.locks, progress, spec.uid)
    except Exception:
        remove_tree(staging, context.locks)
        raise
    context.reporter.changed = foreign.sentence()
    if volume is not None:
        directory.set_aside(spec.op_id)
    directory.swap_in(staging, Generation(spec.op_id, spec.archive_key))
    restored = f"restored {fact.entries} entries"
    return JobOutcome(f"{restored}; {changed}" if (changed := context.reporter.changed) else restored, fact)


def _check_free_space(content: str, path: Path, reserve: Reserve) -> None:
    """Raise NoSpace below the reserve: a job must not fill the disk of the database."""
    short = shortages(free_space(path), reserve)
    if short:
        raise NoSpace(
            f"the disk of the {content} {short[0].left}, and {short[0].kept} are kept in reserve: "
            "make room on the disk"
        )


def _find_archive(spec: RestoreJob, archives: BlockingArchiveStore) -> ArchiveFact:
    workspace_id, archive_op_id = parsed_archive_key(spec.archive_key)
    if workspace_id != spec.workspace_id:
        raise InvalidKey(f"the archive {spec.archive_key} belongs to another workspace")
    fact = archives.find(workspace_id, archive_op_id)
    if fact is None:
        raise ArchiveMissing(f"the archive {spec.archive_key} is not in the store, or without its .meta")
    if spec.sha256 is not None and spec.sha256 != fact.sha256:
        raise CorruptedArchive(f"the .meta of archive {spec.archive_key} is not the one that was committed")
    return fact


def _delete(spec: DeleteJob, directory: WorkspaceDirectory, context: JobContext) -> JobOutcome:
    volume = directory.observe()
    if volume is not None and volume.generation != spec.generation:
        raise GenerationMismatch("generation differs: another home has replaced the expected one")
    if volume is not None:
        if spec.unchanged_since is not None:
            check_unchanged(directory.home, spec.unchanged_since, context.locks)
        directory.move_to_deleted(spec.generation)
    else:
        directory.remove_marker()
    for leftover in directory.leftovers("deleted"):
        remove_tree(leftover, context.locks)
    return JobOutcome("the home is removed" if volume is not None else "there was no home")


def _clear(spec: ClearJob, directory: WorkspaceDirectory, context: JobContext) -> JobOutcome:
    paths = [path for path in directory.all_leftovers() if path.name in spec.names]
    for leftover in paths:
        remove_tree(leftover, context.locks)
    return JobOutcome(f"{len(paths)} leftovers are removed")


def _archives(location: StorageLocation) -> BlockingArchiveStore:
    return BlockingArchiveStore(location.archive_url, location.installation_id)
