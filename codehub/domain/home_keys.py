"""Keys of homes in the volumes: `users/{user_id}/workspaces/{workspace_id}/home`."""

import re

from codehub.domain.ids import PATH_ID

_HOME_STORE_KEY = re.compile(rf"users/({PATH_ID})/workspaces/({PATH_ID})/home")


def home_store_key(user_id: str, workspace_id: str) -> str:
    """Return the home_store_key of a workspace."""
    return f"users/{user_id}/workspaces/{workspace_id}/home"


def parse_home_store_key(key: str) -> tuple[str, str]:
    """Return (user_id, workspace_id); raise ValueError if this is not a home_store_key."""
    match = _HOME_STORE_KEY.fullmatch(key)
    if match is None:
        raise ValueError(f"{key!r} is not a home_store_key")
    return match[1], match[2]
