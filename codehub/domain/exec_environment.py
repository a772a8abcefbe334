"""Rules for the variables that a caller may give to a command."""

import re
from collections.abc import Mapping
from typing import Final

from codehub.domain.problems import ValidationFailed

MOST_BYTES: Final = 64 << 10
"""Names and values of all variables together."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_RESERVED_PREFIXES: Final = ("CODEHUB_", "LD_")
_RESERVED: Final = frozenset(("HOME", "USER", "LOGNAME", "VSCODE_PROXY_URI"))
"""The user of the workspace, and what the start of its IDE sets for its terminals."""


def check_environment(variables: Mapping[str, str]) -> None:
    """Raise ValidationFailed unless a command may have these variables.

    PATH, BASH_ENV and the like are for the caller to choose: only the command itself has them.
    """
    for name, value in variables.items():
        if not _NAME.fullmatch(name):
            raise ValidationFailed(
                f"env: {name[:100]!r} is not a name. A name begins with a letter or `_`, and goes on with "
                "letters, digits and `_`."
            )
        if name in _RESERVED or name.startswith(_RESERVED_PREFIXES):
            raise ValidationFailed(f"env: {name[:100]} is set by CodeHub and cannot be changed.")
        if "\0" in value:
            raise ValidationFailed(f"env: the value of {name[:100]} contains a NUL character.")
    size = sum(len(text.encode("utf-8", "surrogatepass")) + 1 for item in variables.items() for text in item)
    if size > MOST_BYTES:
        raise ValidationFailed(f"env: the variables have {size} bytes together; at most {MOST_BYTES} fit.")
