"""Names of archives in the archive store.

An archive is two objects: `{workspace_id}/{archive_op_id}/home.tar.zst`, whose name is the
archive_key, and `.meta` beside it.
"""

import re
from typing import Final

from codehub.domain.ids import PATH_ID

OBJECT_NAME: Final = "home.tar.zst"
META_NAME: Final = ".meta"

_ARCHIVE_KEY = re.compile(rf"({PATH_ID})/({PATH_ID})/{re.escape(OBJECT_NAME)}")


def archive_key(workspace_id: str, archive_op_id: str) -> str:
    """Return the archive_key of a workspace's archive."""
    return f"{workspace_id}/{archive_op_id}/{OBJECT_NAME}"


def is_archive_key(text: str) -> bool:
    """Return whether a text has the form of an archive_key."""
    return _ARCHIVE_KEY.fullmatch(text) is not None


def parse_archive_key(key: str) -> tuple[str, str]:
    """Return (workspace_id, archive_op_id); raise ValueError if this is not an archive_key."""
    match = _ARCHIVE_KEY.fullmatch(key)
    if match is None:
        raise ValueError(f"{key!r} is not an archive_key")
    return match[1], match[2]


def archive_op_id_of(key: str) -> str:
    """Return the archive_op_id inside an archive_key."""
    return parse_archive_key(key)[1]


def meta_key(key: str) -> str:
    """Return the name of the `.meta` that commits the archive with this archive_key."""
    return key.removesuffix(OBJECT_NAME) + META_NAME
