"""Decisions about workspaces that need no connection."""

import re
from typing import Final
from urllib.parse import quote

from codehub.client.models import WorkspaceInfo

_ID: Final = re.compile(r"[0-7][0-9a-hjkmnp-tv-z]{25}")


def looks_like_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None


def wait_is_over(info: WorkspaceInfo, phase: str) -> bool:
    return info.phase == phase and (info.is_at_rest or phase in ("ERROR", "DELETING", "DELETED"))


def check_port(port: int) -> None:
    if not 1 <= port <= 65535:
        raise ValueError(f"{port} is not a port: use 1 to 65535.")


def port_url(workspace_url: str, port: int, path: str = "") -> str:
    """Return the address of a port: it works in both modes, and leads to the port's origin."""
    check_port(port)
    return f"{workspace_url}proxy/{port}/{quote(path.lstrip('/'), safe='/?&=%#')}"


def seconds_for(wake: bool | str, wake_timeout_seconds: float) -> float:
    """Return how long a call may take because it wakes a workspace."""
    return wake_timeout_seconds if wake else 0.0
