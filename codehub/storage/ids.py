"""Ids in paths and object names."""

from codehub.domain.ids import is_path_id
from codehub.storage.errors import InvalidKey


def checked_id(text: str) -> str:
    """Return an id that is safe as one component of a path; raise InvalidKey for anything else."""
    if not is_path_id(text):
        raise InvalidKey(f"{text!r} is not an id")
    return text
