"""Error responses. All have the form `{"error": {"code", "message"}}`."""

from collections.abc import Mapping
from typing import Any, Final

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError, WebSocketRequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute, iter_route_contexts
from pydantic import BaseModel
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError as RedisResponseError
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.exceptions import HTTPException
from starlette.routing import compile_path

from codehub.asgi.validation_text import describe
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


_MEANINGS: Final[Mapping[int, str]] = {
    400: "The request is not valid HTTP, or its address holds a token.",
    401: "There is no valid session or token.",
    403: "The session or token does not permit this, or the call came from another site.",
    404: "There is no such thing.",
    408: "The request took too long to arrive.",
    409: "The state of the workspace, or of what the call names, does not allow this.",
    410: "This is no longer kept.",
    412: "The file has changed: a condition of the request does not hold.",
    413: "The body is too large.",
    414: "The address is too long. The path and the query together have at most 8,192 characters.",
    416: "There are no bytes at this offset.",
    422: "A field or parameter is missing, unknown or not valid. The message names it.",
    429: "A limit is reached.",
    431: "The header fields are too large, or too many.",
    502: "A part of CodeHub, or the workspace, does not answer.",
    503: "A part of CodeHub is not available.",
    504: "There was no answer in time. If the call wakes a workspace, it does not run yet.",
    507: "There is no disk space left.",
}
_OF_EVERY_CALL: Final = (400, 401, 403, 404, 408, 413, 414, 422, 429, 431, 502, 503, 504, 507)
"""The gateway answers some of these before a call reaches its part."""
_WITH_RETRY_AFTER: Final = (429, 503, 504)
_RETRY_AFTER: Final = {
    "description": "Seconds to wait before the next attempt, if known.",
    "schema": {"type": "integer", "minimum": 0},
}


def error_responses(*more: int) -> dict[int | str, dict[str, Any]]:
    """Return the error responses of a call for the OpenAPI document: those of every call, and `more`."""
    return {
        status: {"model": ErrorEnvelope, "description": _MEANINGS[status]}
        | ({"headers": {"Retry-After": _RETRY_AFTER}} if status in _WITH_RETRY_AFTER else {})
        for status in sorted((*_OF_EVERY_CALL, *more))
    }


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
    body = error.body if isinstance(error, RequestValidationError) else None
    return envelope(422, "VALIDATION_ERROR", describe(error.errors(), body))


async def _on_http_exception(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    code, message = _CODES.get(error.status_code, ("HTTP_ERROR", str(error.detail)))
    status = 422 if error.status_code == 400 else error.status_code
    headers = dict(error.headers or {})
    if status == 405 and (methods := allowed_methods(request)):
        headers["Allow"] = ", ".join(methods)
    return envelope(status, code, message, headers)


def allowed_methods(request: Request) -> list[str]:
    """Return the methods of all routes of a path. The framework names those of the first one only."""
    path, methods = request.url.path, set[str]()
    for context in iter_route_contexts(request.app.routes):
        is_route = isinstance(context.original_route, APIRoute)
        if is_route and compile_path(context.path or "")[0].match(path):
            methods |= context.methods or set()
    return sorted(methods)


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
