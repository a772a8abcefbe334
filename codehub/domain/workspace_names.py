"""Safe forms of a workspace's name: as a command argument, and as a host name."""

from __future__ import annotations

import re
import unicodedata
from typing import Final

_LONGEST_ARGUMENT: Final = 100
_LONGEST_LABEL: Final = 63
"""RFC 1035, 2.3.4. Linux takes one character more."""
_NOT_IN_A_LABEL = re.compile(r"[^a-z0-9]+")
_NOT_TEXT: Final = frozenset(("Cc", "Cs", "Zl", "Zp"))
"""Unicode categories: control characters, surrogates, separators of lines and of paragraphs."""


def as_argument(name: str, workspace_id: str) -> str:
    """Return the name on one line, fit for a command's argument; the id if nothing is left of it.

    It never begins with a hyphen, so no command mistakes it for an option.
    """
    text = "".join(" " if unicodedata.category(char) in _NOT_TEXT else char for char in name)
    return " ".join(text.split())[:_LONGEST_ARGUMENT].lstrip("- ").rstrip() or workspace_id


def as_host_name(name: str, workspace_id: str) -> str:
    """Return one DNS label made of the name, or of the id if the name has no ASCII letter or digit."""
    letters = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    return _label(letters) or _label(workspace_id.lower())


def _label(text: str) -> str:
    return _NOT_IN_A_LABEL.sub("-", text).strip("-")[:_LONGEST_LABEL].rstrip("-")
