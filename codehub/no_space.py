"""Problem responses for writes that fail because PostgreSQL or Redis has no space left."""

from codehub.bus.write_rejections import rejects_writes
from codehub.database.engine import is_out_of_space
from codehub.domain.problems import InsufficientStorage

_DATABASE = (
    "The disk of CodeHub's database is full, so nothing was saved and nothing has changed. "
    "Ask an admin to make room on that disk, then try again."
)
_REDIS = (
    "CodeHub's Redis has no room left, so nothing was saved and nothing has changed. "
    "Ask an admin to make room for it, then try again."
)


def insufficient_storage(error: Exception) -> InsufficientStorage | None:
    """Return the problem to respond with, or None if the error has another cause."""
    if is_out_of_space(error):
        return InsufficientStorage(_DATABASE)
    return InsufficientStorage(_REDIS) if rejects_writes(error) else None
