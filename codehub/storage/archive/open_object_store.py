"""Object stores by URL."""

from pathlib import Path
from urllib.parse import unquote, urlsplit

from codehub.host.durable_files import make_directory
from codehub.storage.archive.local_object_store import LocalObjectStore
from codehub.storage.archive.object_store import ObjectStore
from codehub.storage.errors import InvalidKey, Unobservable


def open_object_store(url: str, *, create: bool = False) -> ObjectStore:
    """Open `file:///directory` or `s3://bucket/prefix` (credentials: the AWS_* variables)."""
    parts = urlsplit(url)
    root = directory_of(url)
    if root is not None:
        if create:
            make_directory(root, 0o700)
        elif not root.is_dir():
            raise Unobservable(f"the archive store {root} is not there: is its disk mounted?")
        return LocalObjectStore(root)
    if parts.scheme == "s3" and parts.netloc:
        # Imported only for S3: loading the client costs time and memory.
        from codehub.storage.archive.s3_object_store import S3ObjectStore

        return S3ObjectStore(parts.netloc, unquote(parts.path).strip("/"))
    raise InvalidKey(f"{url!r} is not an archive store: file:///directory or s3://bucket/prefix")


def directory_of(url: str) -> Path | None:
    """Return the directory of a store, or None for a service."""
    parts = urlsplit(url)
    is_directory = parts.scheme == "file" and parts.path.startswith("/")
    return Path(unquote(parts.path)) if is_directory else None
