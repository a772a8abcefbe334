"""Writes that Redis rejects although it answers."""

from redis.exceptions import OutOfMemoryError, ResponseError


def rejects_writes(error: BaseException) -> bool:
    """Return whether Redis rejects writes: its memory is full, or its last snapshot failed."""
    full = isinstance(error, OutOfMemoryError)
    return full or (isinstance(error, ResponseError) and str(error).startswith(("MISCONF", "OOM")))
