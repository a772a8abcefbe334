"""Generation of ids."""

from ulid import ULID


def new_id() -> str:
    """Return a new ULID in lower case; ids sort by their time of creation, to the millisecond."""
    return str(ULID()).lower()
