"""JSON into frozen dataclasses, with an error that names the field that is wrong.

Unknown fields are ignored, so that an older client understands a newer server.
"""

import dataclasses
import types
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from codehub.client.errors import UnexpectedAnswer

T = TypeVar("T")
RAW = "raw"
"""Name of the field that holds the JSON object itself."""


def decode(kind: type[T], value: object, where: str = "the answer") -> T:
    """Return the value as an instance of a dataclass; raise UnexpectedAnswer if it does not fit."""
    result: T = _decode(kind, value, where)
    return result


def _decode(kind: Any, value: object, where: str) -> Any:
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _decode_object(kind, value, where)
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        [inner] = [each for each in get_args(kind) if each is not type(None)]
        return None if value is None else _decode(inner, value, where)
    if origin is tuple:
        [inner, _] = get_args(kind)
        return tuple(_decode(inner, each, where) for each in _checked(list, value, where))
    if origin is dict:
        [_, inner] = get_args(kind)
        items = _checked(dict, value, where).items()
        return {str(key): _decode(inner, each, f"{where}.{key}") for key, each in items}
    return _decode_scalar(kind, value, where)


def _decode_object(kind: Any, value: object, where: str) -> Any:
    data = _checked(dict, value, where)
    found: dict[str, Any] = {}
    for name, (hint, is_required) in _fields(kind).items():
        if name == RAW:
            found[RAW] = data
        elif name in data:
            found[name] = _decode(hint, data[name], f"{where}.{name}")
        elif is_required:
            raise UnexpectedAnswer(
                f"{where} has no field {name!r}. Is this a CodeHub server of this version?"
            )
    return kind(**found)


@lru_cache(maxsize=64)
def _fields(kind: Any) -> Mapping[str, tuple[Any, bool]]:
    hints = get_type_hints(kind)
    return {
        each.name: (
            hints[each.name],
            each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING,
        )
        for each in dataclasses.fields(kind)
    }


def _decode_scalar(kind: Any, value: object, where: str) -> Any:
    if kind is datetime:
        try:
            return datetime.fromisoformat(_checked(str, value, where))
        except ValueError as error:
            raise _wrong(where, "a time", value) from error
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    return _checked(kind, value, where)


def _checked(kind: type[T], value: object, where: str) -> T:
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise _wrong(where, kind.__name__, value)
    return value


def _wrong(where: str, expected: str, value: object) -> UnexpectedAnswer:
    return UnexpectedAnswer(f"{where} should be {expected}, and is {type(value).__name__}.")
