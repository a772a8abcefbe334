"""Limit of the TLS records that one callback decrypts (ADR 0024).

A record may hold one byte. The event loop decrypts all records that it has read, up to 256 KiB or 11,000
records, before its protocol receives the first byte.
"""

import ssl
from collections.abc import Callable
from typing import Any, Final

RECORDS: Final = 16
"""Records that one callback decrypts, in 1 us each if they are tiny. As many full ones are 256 KiB."""
DISCARDED: Final = 1024
"""Further records of a connection that is being closed, so that the client receives the last response."""
_LARGEST: Final = 16 * 1024
"""Bytes in a full record (RFC 8446, 5.1). The loop requests 256 KiB, which cost up to 12 us to allocate."""


class LimitedRecords(ssl.SSLObject):
    """TLS connection that pretends to need more input after each few records."""

    incoming: ssl.MemoryBIO
    on_limit: Callable[[], bool] | None = None
    """Called at the limit. Returns whether it resumes the reading of this connection, which is open."""
    _count = 0
    _discarded = 0

    def read(self, len: int = _LARGEST, buffer: Any = None) -> Any:  # noqa: A002 - the name of the base class
        if self._count >= RECORDS:
            self._count = 0
            if self._must_stop():
                raise ssl.SSLWantReadError
        try:
            data = super().read(min(len, _LARGEST), buffer)
        except ssl.SSLWantReadError:
            self._count = 0
            raise
        self._count = self._count + 1 if self.incoming.pending else 0
        return data

    def _must_stop(self) -> bool:
        if self.on_limit is None or self.on_limit():
            return True
        self._discarded += RECORDS
        return self._discarded > DISCARDED


class RecordLimit(ssl.SSLContext):
    """Context of the TLS port."""

    sslobject_class = LimitedRecords

    def wrap_bio(self, incoming: ssl.MemoryBIO, *args: Any, **options: Any) -> ssl.SSLObject:
        connection = super().wrap_bio(incoming, *args, **options)
        assert isinstance(connection, LimitedRecords)
        connection.incoming = incoming
        return connection
