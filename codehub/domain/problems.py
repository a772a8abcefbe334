"""Errors that the API and the pages report to people: a code, an HTTP status and a message."""


class Problem(Exception):  # noqa: N818 - as in RFC 9457, problem details
    """The request cannot be fulfilled."""

    code = "VALIDATION_ERROR"
    status = 422

    def __init__(self, message: str | None = None, *, retry_after: int | None = None) -> None:
        self.message = message or (type(self).__doc__ or "").strip()
        self.retry_after = retry_after
        super().__init__(self.message)


class Unauthorized(Problem):
    """Sign in first."""

    code, status = "UNAUTHORIZED", 401


class Forbidden(Problem):
    """You are not allowed to do this."""

    code, status = "FORBIDDEN", 403


class WorkspaceNotFound(Problem):
    """There is no such workspace."""

    code, status = "WORKSPACE_NOT_FOUND", 404


class NotFound(Problem):
    """There is nothing here."""

    code, status = "NOT_FOUND", 404


class OperationInProgress(Problem):
    """Another step is under way for this workspace. Wait until it ends, or cancel it."""

    code, status = "OPERATION_IN_PROGRESS", 409


class InvalidState(Problem):
    """The workspace is not in a state that allows this."""

    code, status = "INVALID_STATE", 409


class ValidationFailed(Problem):
    """The request is not valid."""

    code, status = "VALIDATION_ERROR", 422


class RunningLimitExceeded(Problem):
    """Too many workspaces are running. Stop one first."""

    code, status = "RUNNING_LIMIT_EXCEEDED", 429


class WorkspaceLimitExceeded(Problem):
    """You have too many workspaces. Delete one first."""

    code, status = "WORKSPACE_LIMIT_EXCEEDED", 429


class ArchiveLimitExceeded(Problem):
    """Your archives take too much space. Delete workspaces that you no longer need."""

    code, status = "ARCHIVE_LIMIT_EXCEEDED", 429


class InsufficientStorage(Problem):
    """There is no disk space left for this."""

    code, status = "INSUFFICIENT_STORAGE", 507


class TooManyRequests(Problem):
    """Too many attempts. Try again later."""

    code, status = "TOO_MANY_REQUESTS", 429
