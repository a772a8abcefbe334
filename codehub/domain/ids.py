"""Forms of ids."""

import re
from typing import Final

ULID: Final = r"[0-7][0-9a-hjkmnp-tv-z]{25}"
"""Pattern of a ULID in lower case: the ids of workspaces and users."""
ULID_LENGTH: Final = 26
PATH_ID: Final = r"[0-9A-Za-z_-]{1,64}"
"""Pattern of an id that is safe as one component of a path or an object name."""
LABEL_ID: Final = r"[a-z0-9][a-z0-9-]{0,49}"
"""Pattern of an id that is safe in host names and container names as well."""

_ULID = re.compile(ULID)
_PATH_ID = re.compile(PATH_ID)
_LABEL_ID = re.compile(LABEL_ID)


def is_ulid(text: str) -> bool:
    """Return whether a text is a ULID in lower case."""
    return _ULID.fullmatch(text) is not None


def is_path_id(text: str) -> bool:
    """Return whether a text is an id that is safe as one component of a path."""
    return _PATH_ID.fullmatch(text) is not None


def is_label_id(text: str) -> bool:
    """Return whether a text is an id that is safe in paths, host names and container names."""
    return _LABEL_ID.fullmatch(text) is not None
