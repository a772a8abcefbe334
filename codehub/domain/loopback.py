"""Recognition of loopback hosts."""

from typing import Final

_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")


def is_loopback(host: str) -> bool:
    return host in _LOOPBACK or host.endswith(".localhost")
