"""Text that people give: what may be in it."""

import unicodedata
from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, StringConstraints

_BIDI_CONTROLS: Final = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_LINE_ENDS: Final = frozenset("\n\r\t")
MAX_SEARCH: Final = 100
"""Characters. The cost of a search grows with the length of its words times that of every memo."""
MAX_SEARCH_WORDS: Final = 8


def _one_line(value: str) -> str:
    """Control characters and text that runs backwards can make one name look like another."""
    if any(unicodedata.category(char) in ("Cc", "Zl", "Zp") or char in _BIDI_CONTROLS for char in value):
        raise ValueError("must not hold control characters")
    return value


def _several_lines(value: str) -> str:
    if any(unicodedata.category(char) == "Cc" and char not in _LINE_ENDS for char in value):
        raise ValueError("must not hold control characters")
    return value


def _no_nul(value: str) -> str:
    if "\0" in value:
        raise ValueError("must not hold NUL characters")
    return value


def _few_words(value: str) -> str:
    if len(value.split()) > MAX_SEARCH_WORDS:
        raise ValueError(f"must have at most {MAX_SEARCH_WORDS} words: search for fewer")
    return value


Name = Annotated[
    str, StringConstraints(strip_whitespace=True, min_length=1, max_length=64), AfterValidator(_one_line)
]
Description = Annotated[str, StringConstraints(max_length=1000), AfterValidator(_several_lines)]
Memo = Annotated[str, StringConstraints(max_length=20_000), AfterValidator(_several_lines)]
Words = Annotated[str, StringConstraints(max_length=200), AfterValidator(_no_nul)]
SearchText = Annotated[
    str, StringConstraints(max_length=MAX_SEARCH), AfterValidator(_no_nul), AfterValidator(_few_words)
]
Secret = Annotated[str, StringConstraints(max_length=1024), AfterValidator(_no_nul)]


class Body(BaseModel):
    """A request's body: exact types, and nothing that is not asked for."""

    model_config = ConfigDict(extra="forbid", strict=True)
