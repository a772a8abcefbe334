"""Sentences for invalid requests: they name fields, and nothing of the validator's."""

from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute, iter_route_contexts
from pydantic import BaseModel, ValidationError

from codehub.access.app import create_app as create_access
from codehub.access.exec_streams import SignalToSend
from codehub.access.execs import NewCommand
from codehub.api.app import create_app as create_api
from codehub.api.workspaces import NewWorkspace
from codehub.asgi.validation_text import describe
from codehub.settings import Settings

WORDS_OF_THE_VALIDATOR = (
    *("function-", "constrained", "tagged-union", "list[", "dict[", "literal[", "Input", "Extra", "Field"),
    *("[key]", "nullable", "model", "String", "should"),
)
ODD: list[Any] = [
    None,
    5,
    2.5,
    True,
    "",
    "\0",
    [],
    ["a", 5],
    [[]],
    {},
    {"a": 1},
    {"a": {}},
    {"rows": "x"},
    10**40,
]


def sentence(model: type[BaseModel], body: Any) -> str:
    with pytest.raises(ValidationError) as raised:
        model.model_validate(body)
    errors = [{**error, "loc": ("body", *error["loc"])} for error in raised.value.errors()]
    return describe(errors, body)


@pytest.mark.parametrize(
    ("model", "body", "expected"),
    [
        (NewCommand, {}, "command: is missing"),
        (NewCommand, {"command": 5}, "command: must be a list or a text"),
        (NewCommand, {"command": None}, "command: must be a list or a text"),
        (NewCommand, {"command": ["a", 5]}, "command.1: must be a text"),
        (NewCommand, {"command": "a", "wake": 5}, "wake: must be true or false or 'restore'"),
        (NewCommand, {"command": "a", "wake": "yes"}, "wake: must be true or false or 'restore'"),
        (NewCommand, {"command": "a", "env": {"A": 1}}, "env.A: must be a text"),
        (NewCommand, {"command": "a", "tty": {"rows": "1", "cols": 1}}, "tty.rows: must be a whole number"),
        (NewCommand, {"tty": {"rows": 1}}, "command: is missing; tty.cols: is missing"),
        (NewCommand, {"command": "a", "timeout": 5}, "timeout: is not a field of this call"),
        (NewCommand, [], "The body is not a JSON object. Send one, with Content-Type: application/json."),
        (SignalToSend, {"signal": 65}, "signal: must be a number from 1 to 64, or a name such as INT"),
        (SignalToSend, {"signal": "sigint"}, "signal: must be a number from 1 to 64, or a name such as INT"),
        (SignalToSend, {"signal": []}, "signal: must be a number from 1 to 64, or a name such as INT"),
        (NewWorkspace, {"name": "x" * 65}, "name: must have at most 64 characters"),
        (NewWorkspace, {"name": "a\nb"}, "name: must not contain control characters"),
    ],
)  # fmt: skip
def test_a_sentence_names_the_field_and_what_it_takes(
    model: type[BaseModel], body: Any, expected: str
) -> None:
    assert sentence(model, body) == expected


def bodies() -> Iterator[type[BaseModel]]:
    settings = Settings(database_url="postgresql:///none", redis_url="redis://none")
    apps: tuple[FastAPI, ...] = (create_api(settings), create_access(settings))
    for context in (context for app in apps for context in iter_route_contexts(app.routes)):
        route = context.original_route
        if isinstance(route, APIRoute) and route.body_field is not None:
            annotation = route.body_field.field_info.annotation
            yield from (
                part
                for part in getattr(annotation, "__args__", (annotation,))
                if isinstance(part, type) and issubclass(part, BaseModel)
            )


def test_no_sentence_about_any_body_has_words_of_the_validator() -> None:
    """Every field of every body of the API and the access part, with odd values."""
    checked, wrong = 0, []
    for model in bodies():
        for name, declared in model.model_fields.items():
            for value in ODD:
                body = {declared.alias or name: value}
                try:
                    model.model_validate(body)
                except ValidationError as error:
                    errors = [{**each, "loc": ("body", *each["loc"])} for each in error.errors()]
                    text = describe(errors, body)
                    checked += 1
                    wrong += [f"{model.__name__}: {text}" for word in WORDS_OF_THE_VALIDATOR if word in text]
    assert checked > 500
    assert not wrong, "\n".join(sorted(set(wrong)))
