"""Paths of the host in messages: an owner reads the message, and the host's layout is not for owners."""

import re
from collections.abc import Mapping
from typing import Final

_REST: Final = r"(?:/[^\s'\",;:)\]]*)?"
"""What follows a root. A path with a space in it ends there; what is left of it names nothing of the host."""
_HOME = re.compile(r".*/users/[^/]+/workspaces/[^/]+/home(?=/|$)")


class PathRedactor:
    """Replaces paths below known roots; each root comes with what to call it."""

    def __init__(self, names: Mapping[str, str] | None = None) -> None:
        self._names = {root.rstrip("/"): name for root, name in (names or {}).items()}
        self._names.pop("", None)
        roots = sorted(map(re.escape, self._names), key=len, reverse=True)
        self._path = re.compile(
            rf"(?:(?:file|unix)://)?(?<![\w.-])(?P<root>{'|'.join(roots)})(?P<rest>{_REST})(?![\w.-])"
        )

    def hide(self, text: str) -> str:
        """Return the text as its readers may see it. A path in a home is the owner's, and becomes `~/...`."""
        return self._path.sub(self._shown, text) if self._names else text

    def _shown(self, path: re.Match[str]) -> str:
        in_home, found = _HOME.subn("~", path["rest"])
        return in_home if found else self._names[path["root"]]
