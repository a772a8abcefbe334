"""Answers of a server, checked: CodeHub's own, an error of CodeHub, or neither."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from codehub.client.errors import UnexpectedAnswer, api_error
from codehub.client.requests import Server

_EXCERPT: Final = 200
_LONGEST_WAIT: Final = 3600.0


@dataclass(frozen=True)
class Answer:
    """Response with its body. Names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        if not _is_json(self.headers):
            raise _not_ours(self)
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError) as error:
            raise UnexpectedAnswer("The server's answer is not valid JSON.", self.status) from error


def check_status(answer: Answer, server: Server) -> None:
    """Raise the exception for an answer that is not a success."""
    if 200 <= answer.status < 300:
        return
    if 300 <= answer.status < 400:
        target = answer.headers.get("location", "")
        raise UnexpectedAnswer(
            f"The server at {server.url} answers with a redirect to {printable(target) or 'nowhere'}. "
            "It was not followed. Is the address right?",
            answer.status,
        )
    code, message = _error_of(answer)
    raise api_error(answer.status, code, message, retry_after(answer.headers))


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of a Retry-After field. A date, which CodeHub never sends, counts as none."""
    text = headers.get("retry-after", "")
    return min(float(text), _LONGEST_WAIT) if text.isascii() and text.isdigit() else None


def byte_offset(headers: Mapping[str, str], name: str, least: int) -> int:
    """Return an offset that a header names. It never lies before the one that was asked for."""
    text = headers.get(name, "")
    if not (text.isascii() and text.isdigit()) or int(text) < least:
        raise UnexpectedAnswer(
            f"The answer's header {name} is {printable(text)!r}: the bytes' place is unknown."
        )
    return int(text)


def _error_of(answer: Answer) -> tuple[str, str]:
    try:
        error = json.loads(answer.body)["error"] if _is_json(answer.headers) else None
    except (ValueError, RecursionError, KeyError, TypeError):
        error = None
    if (
        isinstance(error, dict)
        and isinstance(error.get("code"), str)
        and isinstance(error.get("message"), str)
    ):
        return error["code"], error["message"]
    raise _not_ours(answer)


def _is_json(headers: Mapping[str, str]) -> bool:
    return headers.get("content-type", "").partition(";")[0].strip().lower() == "application/json"


def _not_ours(answer: Answer) -> UnexpectedAnswer:
    kind = answer.headers.get("content-type") or "no content type"
    excerpt = printable(answer.body[:_EXCERPT].decode(errors="replace"))
    return UnexpectedAnswer(
        f"The answer ({answer.status}, {printable(kind)}) is not CodeHub's. "
        f"Is the address right, or does a proxy answer? It begins: {excerpt!r}",
        answer.status,
    )


def printable(text: str) -> str:
    """Return text from a server without what would control a terminal."""
    return "".join(char if char.isprintable() else " " for char in text[:_EXCERPT]).strip()
