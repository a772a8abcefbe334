"""Format of API tokens, by which they are recognised in requests and logs."""

from typing import Final

TOKEN_PREFIX: Final = "chub_"  # noqa: S105 - the same for all
TOKEN_LENGTH: Final = 40
"""Characters after the prefix: letters, digits, `_` and `-`."""
