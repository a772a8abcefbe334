"""Redaction of the host's paths in messages to owners, who must not learn the host's layout."""

import re
from collections.abc import Mapping
from typing import Final

_REST: Final = r"(?:/[^\s'\",;:)\]]*)?"
"""Pattern of the path after a root. A path ends at a space."""
_HOME = re.compile(r".*/users/[^/]+/workspaces/[^/]+/home(?=/|$)")


class PathRedactor:
    """Replacement of paths below known roots by names for them."""

    def __init__(self, names: Mapping[str, str] | None = None) -> None:
        self._names = {root.rstrip("/"): name for root, name in (names or {}).items()}
        self._names.pop("", None)
        roots = sorted(map(re.escape, self._names), key=len, reverse=True)
        self._path = re.compile(
            rf"(?:(?:file|unix)://)?(?<![\w.-])(?P<root>{'|'.join(roots)})(?P<rest>{_REST})(?![\w.-])"
        )

    def redact(self, text: str) -> str:
        """Return the text without host paths. A path in a home becomes `~/...`."""
        return self._path.sub(self._replacement, text) if self._names else text

    def _replacement(self, path: re.Match[str]) -> str:
        in_home, found = _HOME.subn("~", path["rest"])
        return in_home if found else self._names[path["root"]]
