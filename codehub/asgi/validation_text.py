"""Sentences for what is wrong with a request, without names of the validator's own."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

MOST_SENTENCES: Final = 5
LONGEST_FIELD: Final = 100
_TEXTS: Final[Mapping[str, str]] = {
    "missing": "is missing",
    "extra_forbidden": "is not a field of this call",
    "string_type": "must be a text",
    "string_unicode": "must be valid Unicode",
    "bool_type": "must be true or false",
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "list_type": "must be a list",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
}
_REPLACED: Final = (
    ("Value error, ", ""),
    ("Input should ", "must "),
    ("String should ", "must "),
    ("List should ", "must "),
    ("Dictionary should ", "must "),
    (" after validation", ""),
)
_MUST_BE: Final = "must be "


@dataclass(frozen=True)
class _Fault:
    """What is wrong with a field. `of_member`: for one type of those that the field may have."""

    field: tuple[str, ...]
    text: str
    is_own: bool
    of_member: bool


def describe(errors: Sequence[Any], body: Any = None) -> str:
    """Return the first few errors in one line, each with the name of its field, without the input.

    A field that may have several types has an error for each. They become one sentence.
    """
    faults = [_fault(error, body) for error in errors]
    fields = dict.fromkeys(fault.field for fault in faults if not _is_superseded(fault, faults))
    sentences = [_sentence(field, [fault for fault in faults if fault.field == field]) for field in fields]
    return _printable("; ".join(sentences[:MOST_SENTENCES])) or "The request is not valid."


def _is_superseded(fault: _Fault, faults: Iterable[_Fault]) -> bool:
    """Return whether a member of the union fits better: its errors are about what the value contains."""
    length = len(fault.field)
    return fault.of_member and any(
        len(other.field) > length and other.field[:length] == fault.field for other in faults
    )


def _sentence(field: tuple[str, ...], faults: Sequence[_Fault]) -> str:
    texts = list(dict.fromkeys(fault.text for fault in faults if fault.is_own))
    texts = texts or list(dict.fromkeys(fault.text for fault in faults))
    if all(text.startswith(_MUST_BE) for text in texts):
        texts[1:] = [text.removeprefix(_MUST_BE) for text in texts[1:]]
    text, name = " or ".join(texts), ".".join(field)[:LONGEST_FIELD]
    return f"{name}: {text}" if name else text


def _fault(error: Mapping[str, Any], body: Any) -> _Fault:
    kind, place = str(error.get("type")), tuple(error.get("loc", ()))
    if kind == "json_invalid":
        return _Fault((), "The body is not valid JSON.", True, False)
    if place == ("body",) and kind in ("model_attributes_type", "dict_type", "model_type"):
        text = "The body is not a JSON object. Send one, with Content-Type: application/json."
        return _Fault((), text, True, False)
    if place == ("body",) and kind == "missing":
        return _Fault((), "The body is missing. Send a JSON object.", True, False)
    if place[:1] == ("body",):
        field = _field_of_body(place[1:], body, is_missing=kind == "missing")
    else:
        field = tuple(str(part) for part in (place[1:2] or place))
    return _Fault(field, _text(kind, error), kind == "value_error", len(field) < len(place) - 1)


def _field_of_body(place: Sequence[Any], value: Any, *, is_missing: bool) -> tuple[str, ...]:
    """Return the path of a field in the body, without the names of a union's members.

    The names of members are the validator's. They are those that the body does not have, but for the
    last one of a field that is missing.
    """
    field = []
    for index, part in enumerate(place):
        is_item = isinstance(value, list) and isinstance(part, int) and part < len(value)
        if is_item or (isinstance(value, dict) and part in value):
            value = value[part]
            field.append(str(part))
        elif is_missing and index == len(place) - 1:
            field.append(str(part))
    return tuple(field)


def _text(kind: str, error: Mapping[str, Any]) -> str:
    text = _TEXTS.get(kind) or str(error.get("msg", "is not valid"))
    for phrase, replacement in _REPLACED:
        text = text.replace(phrase, replacement)
    return text


def _printable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
