"""Archive stores of the crash matrix: a local directory and a real S3 server."""

import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

import obstore
from obstore.store import S3Store

from codehub.storage.archive.s3_requests import S3Requests, UnfinishedUpload
from codehub.storage.archive.sigv4 import AwsCredentials
from codehub.storage.installation_marker import MARKER
from tests.s3 import S3Server


class Store(Protocol):
    @property
    def url(self) -> str: ...
    @property
    def environment(self) -> dict[str, str]: ...
    def read(self, path: str) -> bytes: ...
    def names(self) -> set[str]:
        """Return every object and unfinished upload, except the installation's marker."""

    def fill(self, workspace_id: str, archives: Path) -> None: ...
    def clear(self) -> None: ...
    def claim(self, installation_id: str) -> None:
        """Mark the empty store as the installation's."""


@dataclass(frozen=True)
class LocalDirectory:
    root: Path
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"file://{self.root}"

    def read(self, path: str) -> bytes:
        return (self.root / path).read_bytes()

    def names(self) -> set[str]:
        # Not Path.rglob, which fails if a file disappears meanwhile.
        files = {
            os.path.join(directory, name) for directory, _, names in os.walk(self.root) for name in names
        }
        return {os.path.relpath(file, self.root) for file in files} - {MARKER}

    def fill(self, workspace_id: str, archives: Path) -> None:
        shutil.copytree(archives, self.root / workspace_id)

    def clear(self) -> None:
        for path in self.root.iterdir():
            if path.is_dir():
                shutil.rmtree(path)

    def claim(self, installation_id: str) -> None:
        self.root.mkdir(mode=0o700)
        (self.root / MARKER).write_text(f"{installation_id}\n")


@dataclass(frozen=True)
class S3:
    server: S3Server
    url: str

    @property
    def environment(self) -> dict[str, str]:
        return self.server.environment()

    def read(self, path: str) -> bytes:
        return bytes(obstore.get(self._open(), path).bytes())

    def names(self) -> set[str]:
        unfinished = {f"{upload.key}#{upload.upload_id}" for upload in self._uploads()}
        return {found["path"] for found in obstore.list(self._open()).collect()} - {MARKER} | unfinished

    def fill(self, workspace_id: str, archives: Path) -> None:
        for file in archives.rglob("*"):
            if file.is_file():
                obstore.put(self._open(), f"{workspace_id}/{file.relative_to(archives)}", file.read_bytes())

    def clear(self) -> None:
        for upload in self._uploads():
            self._requests().abort(upload)
        if names := self.names():
            obstore.delete(self._open(), sorted(names))

    def claim(self, installation_id: str) -> None:
        obstore.put(self._open(), MARKER, f"{installation_id}\n".encode())

    def _uploads(self) -> list[UnfinishedUpload]:
        return list(self._requests().unfinished_uploads(urlsplit(self.url).path.strip("/")))

    def _requests(self) -> S3Requests:
        given = self.environment
        credentials = AwsCredentials(given["AWS_ACCESS_KEY_ID"], given["AWS_SECRET_ACCESS_KEY"])
        bucket = f"{given['AWS_ENDPOINT_URL']}/{urlsplit(self.url).netloc}"
        return S3Requests(bucket, given["AWS_REGION"], credentials, seconds=30)

    def _open(self) -> S3Store:
        given = self.environment
        return S3Store.from_url(
            self.url,
            config={
                "endpoint": given["AWS_ENDPOINT_URL"],
                "access_key_id": given["AWS_ACCESS_KEY_ID"],
                "secret_access_key": given["AWS_SECRET_ACCESS_KEY"],
                "region": given["AWS_REGION"],
            },
            client_options={"allow_http": True},
        )
