"""Exceptions of the SDK. All derive from CodehubError, and say what happened and what to do."""

from typing import Final


class CodehubError(Exception):
    """Base class of everything that the SDK raises on purpose."""


class ConfigurationError(CodehubError):
    """Missing or invalid address, token or credentials file."""


class ConnectionFailed(CodehubError):
    """Failure to reach the server, or the loss of the connection.

    `may_have_happened` is True if the request was sent, so that a call that changes something may
    have done so.
    """

    def __init__(self, message: str, *, may_have_happened: bool = False) -> None:
        super().__init__(message)
        self.may_have_happened = may_have_happened


class TimedOut(ConnectionFailed):
    """Lack of an answer, or of what was waited for, within a timeout."""


class UnexpectedAnswer(CodehubError):
    """Answer that is not CodeHub's, such as a page of a proxy or a redirect."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class ApiError(CodehubError):
    """Error that the server answered with: its HTTP status, its code and its message."""

    def __init__(self, status: int, code: str, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.retry_after = retry_after

    def __str__(self) -> str:
        return f"{self.message} ({self.code})"


class Unauthorized(ApiError):
    """401: the token is missing, unknown, expired or revoked."""


class Forbidden(ApiError):
    """403: the token does not permit this."""


class NotFound(ApiError):
    """404."""


class Conflict(ApiError):
    """409: the state of the workspace, the command or the file does not allow this."""


class Gone(ApiError):
    """410: it existed and is no longer kept."""


class PreconditionFailed(ApiError):
    """412: the file is not the one that the call named."""


class RangeNotSatisfiable(ApiError):
    """416: there are no bytes at this offset."""


class InvalidRequest(ApiError):
    """422: a value is not valid."""


class TooManyRequests(ApiError):
    """429: a limit is reached."""


class ServerError(ApiError):
    """5xx: the server, or what it needs, failed."""


class WorkspaceFailed(CodehubError):
    """End of a wait because the workspace went into ERROR."""

    def __init__(self, message: str, reason: str | None) -> None:
        super().__init__(message)
        self.reason = reason


class CommandKilled(CodehubError):
    """Command that CodeHub ended, or whose end nobody recorded.

    `state` is `killed` or `lost`. `reason` is such as `Timeout`, `Deleted` or `WorkspaceStopped`.
    """

    def __init__(self, state: str, reason: str | None, exit_code: int | None) -> None:
        what = "was killed" if state == "killed" else "is lost: nobody recorded how it ended"
        super().__init__(f"The command {what}{f' ({reason})' if reason else ''}.")
        self.state = state
        self.reason = reason
        self.exit_code = exit_code


class FileChanged(CodehubError):
    """File that changed while it was transferred, so that the parts do not fit together."""


_BY_STATUS: Final[dict[int, type[ApiError]]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    412: PreconditionFailed,
    416: RangeNotSatisfiable,
    422: InvalidRequest,
    429: TooManyRequests,
}


def api_error(status: int, code: str, message: str, retry_after: float | None = None) -> ApiError:
    """Return the exception for a status."""
    kind = ServerError if status >= 500 else _BY_STATUS.get(status, ApiError)
    return kind(status, code, message, retry_after)


class WebSocketClosed(ConnectionFailed):
    """End of a WebSocket, with the code that the server gave: 1006 if it gave none."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason or "The connection has closed.", may_have_happened=True)
        self.code = code


class Silence(TimedOut):
    """Stream that sent nothing for a while, which is no failure: the stream is opened again."""
