"""Error responses. All have the form `{"error": {"code", "message"}}`."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError, WebSocketRequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError as RedisResponseError
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.exceptions import HTTPException

from codehub.database.engine import CONNECTION_ERRORS, is_timeout
from codehub.domain.problems import Problem
from codehub.domain.token_format import without_tokens
from codehub.no_space import insufficient_storage

logger = structlog.get_logger(__name__)

_CODES: Final[Mapping[int, tuple[str, str]]] = {
    400: ("VALIDATION_ERROR", "The body is not valid JSON."),
    404: ("NOT_FOUND", "This address does not exist."),
    405: ("METHOD_NOT_ALLOWED", "This address does not support this method."),
}


class ErrorDetail(BaseModel):
    code: str
    message: str


class ErrorEnvelope(BaseModel):
    """Body of every error response."""

    error: ErrorDetail


def envelope(status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    return JSONResponse(
        {"error": {"code": code, "message": message}}, status, headers=dict(headers or {}) or None
    )


def problem_response(problem: Problem) -> JSONResponse:
    headers = {} if problem.retry_after is None else {"Retry-After": str(problem.retry_after)}
    if problem.status == 429 and not headers:
        headers["Retry-After"] = "5"
    return envelope(problem.status, problem.code, without_tokens(problem.message), headers)


def unavailable() -> JSONResponse:
    return envelope(
        503,
        "UNAVAILABLE",
        "CodeHub's database is not available. Try again shortly.",
        {"Retry-After": "2"},
    )


def timed_out() -> JSONResponse:
    return envelope(
        503,
        "UNAVAILABLE",
        "The database took too long, so the call was stopped. Nothing was changed. Try again shortly. "
        "If this was a search, try fewer or other words.",
        {"Retry-After": "5"},
    )


def describe(errors: Sequence[Any]) -> str:
    """Return the first few errors in one line, each with the name of its field, without the input."""
    lines = []
    for error in errors[:5]:
        path = [str(part) for part in error.get("loc", ())]
        field = ".".join(path[1:] if path[:1] in (["body"], ["query"], ["path"]) else path)
        message = str(error.get("msg", "is not valid")).removeprefix("Value error, ")
        if error.get("type") == "json_invalid":
            field, message = "", "The body is not valid JSON."
        elif path == ["body"] and error.get("type") == "model_attributes_type":
            message = "The body is not a JSON object. Send one, with Content-Type: application/json."
        lines.append(f"{field[:100]}: {message}" if field else message)
    return "; ".join(lines).encode("utf-8", "replace").decode() or "The request is not valid."


def install(app: FastAPI) -> None:
    app.add_exception_handler(Problem, _on_problem)
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    app.add_exception_handler(WebSocketRequestValidationError, _on_validation_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    for unavailable_error in (
        PoolTimeout,
        RedisConnectionError,
        RedisResponseError,
        DBAPIError,
        *CONNECTION_ERRORS,
    ):
        app.add_exception_handler(unavailable_error, _on_dependency_error)
    app.add_exception_handler(Exception, _on_unexpected_error)


async def _on_problem(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, Problem)
    return problem_response(error)


async def _on_validation_error(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError | WebSocketRequestValidationError)
    return envelope(422, "VALIDATION_ERROR", describe(error.errors()))


async def _on_http_exception(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    code, message = _CODES.get(error.status_code, ("HTTP_ERROR", str(error.detail)))
    status = 422 if error.status_code == 400 else error.status_code
    return envelope(status, code, message, error.headers)


async def _on_dependency_error(request: Request, error: Exception) -> JSONResponse:
    no_space = insufficient_storage(error)
    if no_space is not None:
        logger.error("rejected a call: there is no space left", path=request.url.path, error=str(error))
        return problem_response(no_space)
    if isinstance(error, DBAPIError) and is_timeout(error):
        logger.warning("stopped a call: its statement took too long", path=request.url.path)
        return timed_out()
    if isinstance(error, RedisResponseError) or (
        isinstance(error, DBAPIError) and not _lost_connection(error)
    ):
        return await _on_unexpected_error(request, error)
    logger.warning("a call failed: a dependency is not available", path=request.url.path, error=str(error))
    return unavailable()


def _lost_connection(error: DBAPIError) -> bool:
    return error.connection_invalidated or isinstance(error, OperationalError | InterfaceError)


async def _on_unexpected_error(request: Request, error: Exception) -> JSONResponse:
    logger.error("a call failed", path=request.url.path, method=request.method, exc_info=error)
    return envelope(
        500,
        "INTERNAL_ERROR",
        "CodeHub failed to handle this call. Try again, or ask an admin to read the log of the API.",
    )
