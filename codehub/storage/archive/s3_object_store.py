"""Object store in an S3-compatible service (ADR 0012)."""

import base64
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import S3Store

from codehub.storage.archive import s3_requests
from codehub.storage.archive.object_store import SMALL_BYTES, ObjectStore, StoredObject, part_size
from codehub.storage.archive.s3_requests import S3Requests, UnfinishedUpload

_ABORTS = 3
UPLOAD_MEMORY = 12 << 20


class S3ObjectStore(ObjectStore):
    """Object store in an S3 bucket.

    S3Requests lists unfinished uploads and reads the checksums that the service keeps. It needs
    credentials in the environment. Without them, or without the permission to list uploads, a
    lifecycle rule of the bucket has to remove unfinished uploads. Archives that the service cannot
    confirm by a checksum are read back.
    """

    errors = (BaseError, OSError)

    def __init__(self, bucket: str, prefix: str) -> None:
        super().__init__(f"s3://{bucket}/{prefix}")
        self._store = self._do(lambda: _open(bucket, prefix))
        self._requests = S3Requests.from_environment(bucket)
        self._prefix = f"{prefix}/" if prefix else ""

    def read(self, path: str) -> bytes | None:
        return self._if_exists(lambda: _read_start(obstore.get(self._store, path).stream(SMALL_BYTES)))

    def size(self, path: str) -> int | None:
        return self._if_exists(lambda: obstore.head(self._store, path)["size"])

    def list(self) -> "list[StoredObject]":
        listed = self._do(lambda: obstore.list(self._store).collect())
        finished = [StoredObject(meta["path"], meta["size"], meta["last_modified"]) for meta in listed]
        return finished + list(self._unfinished_objects())

    def write(self, path: str, content: bytes) -> None:
        self._do(lambda: obstore.put(self._store, path, content, use_multipart=False))

    def create(self, path: str, content: bytes) -> bool:
        """Write a small object unless it exists (`If-None-Match: *`). Return False if it existed.

        A retry after a lost response finds its own object, and returns False as well.
        """

        def put() -> bool:
            try:
                obstore.put(self._store, path, content, use_multipart=False, mode="create")
            except AlreadyExistsError:
                return False
            return True

        return self._do(put)

    def remove(self, path: str) -> None:
        self._if_exists(lambda: obstore.delete(self._store, path))

    def flush(self, path: str) -> None:
        """Do nothing: the service responds only when an object is durable."""

    def upload(self, path: str, chunks: Iterable[bytes], size_limit: Callable[[], int]) -> bool:
        part = part_size(size_limit())
        hashes = PartHashes(part)
        self._write_from(
            hashes.update(chunks),
            lambda source: obstore.put(
                self._store,
                path,
                iter(source),
                use_multipart=True,
                chunk_size=part,
                max_concurrency=max(1, UPLOAD_MEMORY // part),
            ),
        )
        return self._checksum(path) == hashes.combined()

    def remove_unfinished(self, path: str) -> None:
        """Abort unfinished uploads of this object, and list them again.

        A part that arrives during the abort may recreate the upload.
        """
        for _ in range(_ABORTS):
            unfinished = self._unfinished(path)
            for requests, upload in unfinished:
                requests.abort(upload)
            if not unfinished:
                return

    def _checksum(self, path: str) -> str | None:
        """Return the checksum that the service keeps of an object, or None if there is none."""
        if self._requests is None:
            return None
        try:
            return self._requests.checksum(self._prefix + path)
        except s3_requests.RequestRejected:
            return None

    def can_list_unfinished(self) -> bool:
        return self._list_unfinished("") is not None

    def _range(self, path: str, start: int, length: int) -> memoryview:
        return memoryview(obstore.get_range(self._store, path, start=start, length=length))

    def _unfinished(self, path: str) -> Sequence[tuple[S3Requests, UnfinishedUpload]]:
        return self._list_unfinished(path) or []

    def _list_unfinished(self, path: str) -> Sequence[tuple[S3Requests, UnfinishedUpload]] | None:
        """Return the unfinished uploads, or None if they cannot be listed."""
        requests = self._requests
        if requests is None:
            return None
        try:
            return [(requests, upload) for upload in requests.unfinished_uploads(self._prefix + path)]
        except s3_requests.RequestRejected as error:
            if error.is_unsupported:
                return None
            raise

    def _unfinished_objects(self) -> Iterator[StoredObject]:
        for requests, upload in self._unfinished(""):
            size = requests.uploaded_bytes(upload)
            if size is not None:
                name = f"{upload.key.removeprefix(self._prefix)}#{upload.upload_id}"
                yield StoredObject(name, size, upload.initiated)


class PartHashes:
    """SHA-256 of each part of a stream, cut as the store library cuts it."""

    def __init__(self, part: int) -> None:
        self._part = part
        self._left = part
        self._current = hashlib.sha256()
        self._done: list[bytes] = []

    def update(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """Pass chunks on, and add them to the hashes."""
        for chunk in chunks:
            self._add(memoryview(chunk))
            yield chunk

    def _add(self, chunk: memoryview) -> None:
        while chunk:
            piece, chunk = chunk[: self._left], chunk[self._left :]
            self._current.update(piece)
            self._left -= len(piece)
            if self._left == 0:
                self._done.append(self._current.digest())
                self._current, self._left = hashlib.sha256(), self._part

    def combined(self) -> str:
        """Return the composite checksum that S3 keeps of an upload in parts."""
        digests = [*self._done, self._current.digest()] if self._left < self._part else self._done
        whole = hashlib.sha256(b"".join(digests)).digest()
        return f"{base64.b64encode(whole).decode()}-{len(digests)}"


def _read_start(chunks: Iterator[bytes]) -> bytes:
    read = b""
    for chunk in chunks:
        read += chunk
        if len(read) >= SMALL_BYTES:
            break
    return read


def _open(bucket: str, prefix: str) -> S3Store:
    endpoint = s3_requests.endpoint()
    return S3Store(
        bucket,
        prefix=prefix or None,
        config={"endpoint": endpoint} if endpoint else {},
        client_options={
            "allow_http": endpoint.startswith("http://"),
            "connect_timeout": "5s",
            "timeout": s3_requests.timeout(),
        },
        retry_config={"max_retries": 3, "retry_timeout": timedelta(seconds=30)},
        checksum_algorithm="SHA256",
    )
