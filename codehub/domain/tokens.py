"""The form of API tokens, by which they are recognised wherever they are."""

from typing import Final

TOKEN_PREFIX: Final = "chub_"
TOKEN_LENGTH: Final = 40
"""Characters after the prefix: letters, digits, `_` and `-`."""
