"""Decisions about files that need no connection."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from codehub.client.errors import ConnectionFailed, FileChanged, UnexpectedAnswer
from codehub.client.models import FileInfo, decoded

_CONTENT_RANGE: Final = re.compile(r"bytes (\d{1,19})-\d{1,19}/(\d{1,19})", re.ASCII)


@dataclass(frozen=True)
class WakingOptions:
    """Whether calls start the workspace first, and how long they wait for that."""

    wake: bool | str = False
    timeout_seconds: float = 45.0

    def query(self) -> dict[str, str]:
        if self.wake is False:
            return {}
        return {"wake": str(self.wake).lower(), "wake_timeout_seconds": f"{self.timeout_seconds:g}"}

    @property
    def seconds(self) -> float:
        return self.timeout_seconds if self.wake else 0.0


def path_fields(path: str, name: str = "path") -> dict[str, str]:
    """Return the field of a path. One that is not UTF-8 (with surrogates, as in `os`) is percent-encoded."""
    try:
        path.encode()
    except UnicodeEncodeError:
        plain = (
            chr(byte) if 0x21 <= byte < 0x7F and byte != 0x25 else f"%{byte:02X}"
            for byte in os.fsencode(path)
        )
        return {f"{name}_encoded": "".join(plain)}
    return {name: path}


def link_target(path: str, facts: FileInfo) -> str:
    """Return the path that a symbolic link names."""
    target = decoded(facts.target or "", encoded=facts.target_encoded)
    parent, slash, _ = path.rstrip("/").rpartition("/")
    return target if target.startswith("/") else f"{parent}{slash}{target}"


def remote_name(path: str) -> str:
    """Return the last part of a path in a workspace."""
    return path.rstrip("/").rpartition("/")[2]


class Download:
    """How far the download of a file is, and whether the next part fits to it."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._etag = ""
        self.offset = 0
        self.size: int | None = None

    def headers(self) -> dict[str, str]:
        """Return the headers for what is missing. If-Range gives the whole file if it has changed."""
        if not self.offset:
            return {}
        return {"Range": f"bytes={self.offset}-", "If-Range": self._etag}

    def begin(self, status: int, headers: Mapping[str, str]) -> None:
        """Check where a response begins."""
        if status == 206:
            found = _CONTENT_RANGE.fullmatch(headers.get("content-range", ""))
            if found is None or int(found[1]) != self.offset or not self.offset:
                raise UnexpectedAnswer(
                    "The answer has another part of the file than the one that was asked for.", status
                )
            size = int(found[2])
        else:
            length = headers.get("content-length", "")
            if not (length.isascii() and length.isdigit()):
                raise UnexpectedAnswer("The answer does not say how long the file is.", status)
            size = int(length)
        etag = headers.get("etag", "")
        if self.offset and (status != 206 or etag != self._etag or size != self.size):
            raise FileChanged(f"{self._path} changed while it was read. Read it again.")
        self._etag, self.size = etag, size

    def add(self, count: int) -> None:
        self.offset += count

    @property
    def is_complete(self) -> bool:
        return self.offset == self.size

    def check_complete(self) -> None:
        if not self.is_complete:
            raise ConnectionFailed(f"{self._path} ended early.", may_have_happened=True)
