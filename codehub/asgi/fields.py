"""Field types of request bodies and queries: what text from users may contain."""

import unicodedata
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, model_validator
from pydantic.fields import FieldInfo

_BIDI_CONTROLS: Final = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_LINE_ENDS: Final = frozenset("\n\r\t")
MAX_SEARCH: Final = 100
"""Characters. The cost of a search grows with the length of its words and of every memo."""
MAX_SEARCH_WORDS: Final = 8


_CONTROLS: Final = r"\u0000-\u001f\u007f-\u009f"
_NOT_OF_ONE_LINE: Final = _CONTROLS + r"\u2028\u2029\u202a-\u202e\u2066-\u2069"
_KEPT_CONTROLS: Final = r"\t\n\r"


def documented(pattern: str) -> FieldInfo:
    """Describe in the OpenAPI document what a validator checks. Its sentence is better than a pattern's."""
    info: FieldInfo = Field(json_schema_extra={"pattern": pattern})
    return info


ONE_LINE: Final = documented(f"^[^{_NOT_OF_ONE_LINE}]*[^{_NOT_OF_ONE_LINE}\\s][^{_NOT_OF_ONE_LINE}]*$")
_LINES: Final = documented(f"^([{_KEPT_CONTROLS}]|[^{_CONTROLS}])*$")
NO_NUL: Final = documented(r"^[^\u0000]*$")


def check_one_line(value: str) -> str:
    """Reject characters that can make one name look like another: controls and bidi overrides."""
    if any(unicodedata.category(char) in ("Cc", "Zl", "Zp") or char in _BIDI_CONTROLS for char in value):
        raise ValueError("must not contain control characters")
    return value


def _check_lines(value: str) -> str:
    if any(unicodedata.category(char) == "Cc" and char not in _LINE_ENDS for char in value):
        raise ValueError("must not contain control characters")
    return value


def _check_no_nul(value: str) -> str:
    if "\0" in value:
        raise ValueError("must not contain NUL characters")
    return value


def _check_word_count(value: str) -> str:
    if len(value.split()) > MAX_SEARCH_WORDS:
        raise ValueError(f"must have at most {MAX_SEARCH_WORDS} words")
    return value


Name = Annotated[
    str,
    StringConstraints(strip_whitespace=True, min_length=1, max_length=64),
    AfterValidator(check_one_line),
    ONE_LINE,
]
Description = Annotated[str, StringConstraints(max_length=1000), AfterValidator(_check_lines), _LINES]
Memo = Annotated[str, StringConstraints(max_length=20_000), AfterValidator(_check_lines), _LINES]
ShortText = Annotated[str, StringConstraints(max_length=200), AfterValidator(_check_no_nul), NO_NUL]
SearchText = Annotated[
    str,
    StringConstraints(max_length=MAX_SEARCH),
    AfterValidator(_check_no_nul),
    AfterValidator(_check_word_count),
    NO_NUL,
]
Secret = Annotated[str, StringConstraints(max_length=1024), AfterValidator(_check_no_nul), NO_NUL]


class RequestBody(BaseModel):
    """Base class of request bodies: exact types, no unknown fields."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _take_whole_numbers(cls, values: Any) -> Any:
        """Take 600.0 for 600: to JSON they are the same number."""
        if not isinstance(values, dict):
            return values
        return {
            name: int(value) if isinstance(value, float) and value.is_integer() else value
            for name, value in values.items()
        }
