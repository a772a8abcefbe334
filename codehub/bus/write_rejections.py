"""Writes that Redis refuses although it answers."""

from redis.exceptions import OutOfMemoryError, ResponseError


def rejects_writes(error: BaseException) -> bool:
    """Whether Redis has no room for a write: its memory is used up, or its last snapshot failed."""
    full = isinstance(error, OutOfMemoryError)
    return full or (isinstance(error, ResponseError) and str(error).startswith(("MISCONF", "OOM")))
