"""Errors that the API and the pages report to people: a code, an HTTP status and a message."""


class Problem(Exception):  # noqa: N818 - as in RFC 9457, problem details
    """Base of the errors with a code of the API, a status and a message for people."""

    default_message = "The request cannot be fulfilled."
    code = "VALIDATION_ERROR"
    status = 422

    def __init__(self, message: str | None = None, *, retry_after: int | None = None) -> None:
        self.message = message or self.default_message
        self.retry_after = retry_after
        super().__init__(self.message)


class Unauthorized(Problem):
    """Request without a valid session or password."""

    default_message = "Sign in first, or send an API token in the field Authorization: Bearer."
    code, status = "UNAUTHORIZED", 401


class Forbidden(Problem):
    """Request that the role of its sender does not permit."""

    default_message = "You are not allowed to do this."
    code, status = "FORBIDDEN", 403


class PasswordRequired(Problem):
    """Request that needs a password entered a short time ago."""

    default_message = "Enter your password again. Then repeat this within five minutes."
    code, status = "PASSWORD_REQUIRED", 403


class WorkspaceNotFound(Problem):
    """Request for a workspace that does not exist, or that its sender may not see."""

    default_message = "There is no such workspace."
    code, status = "WORKSPACE_NOT_FOUND", 404


class NotFound(Problem):
    """Request for a path that does not exist."""

    default_message = "There is nothing here."
    code, status = "NOT_FOUND", 404


class OperationInProgress(Problem):
    """Conflict with an operation under way."""

    default_message = "Another step is under way for this workspace. Wait until it ends, or cancel it."
    code, status = "OPERATION_IN_PROGRESS", 409


class InvalidState(Problem):
    """Conflict with the state of the workspace."""

    default_message = "The workspace is not in a state that allows this."
    code, status = "INVALID_STATE", 409


class ValidationFailed(Problem):
    """Invalid request."""

    default_message = "The request is not valid."
    code, status = "VALIDATION_ERROR", 422


class RunningLimitExceeded(Problem):
    """Excess of the limit on running workspaces."""

    default_message = "Too many workspaces are running. Stop one first."
    code, status = "RUNNING_LIMIT_EXCEEDED", 429


class WorkspaceLimitExceeded(Problem):
    """Excess of the limit on workspaces of a user."""

    default_message = "You have too many workspaces. Delete one first."
    code, status = "WORKSPACE_LIMIT_EXCEEDED", 429


class ArchiveLimitExceeded(Problem):
    """Excess of the limit on the size of a user's archives."""

    default_message = "Your archives take too much space. Delete workspaces that you no longer need."
    code, status = "ARCHIVE_LIMIT_EXCEEDED", 429


class InsufficientStorage(Problem):
    """Lack of disk space for a request."""

    default_message = "There is no disk space left for this."
    code, status = "INSUFFICIENT_STORAGE", 507


class TooManyRequests(Problem):
    """Excess of a rate limit."""

    default_message = "Too many attempts. Try again later."
    code, status = "TOO_MANY_REQUESTS", 429


class Gone(Problem):
    """Request for something that existed and was removed."""

    default_message = "This is no longer kept."
    code, status = "GONE", 410


class ArchiveNotFound(Problem):
    """Request for an archive that a workspace does not have."""

    default_message = "This workspace has no such archive."
    code, status = "ARCHIVE_NOT_FOUND", 404


class ArchiveDamaged(Problem):
    """Archive that is not the one that was made."""

    default_message = (
        "This archive is damaged: it is not the one that was made. Choose another, and tell an admin."
    )
    code, status = "ARCHIVE_DAMAGED", 502


class ArchiveStoreUnavailable(Problem):
    """Failure to read the archive store."""

    default_message = "The archive store cannot be read at the moment. Try again later, or ask an admin."
    code, status = "ARCHIVE_STORE_UNAVAILABLE", 503


class RangeNotSatisfiable(Problem):
    """Request for bytes behind the end."""

    default_message = "There are no bytes at this offset."
    code, status = "RANGE_NOT_SATISFIABLE", 416


class WakeTimeout(Problem):
    """End of the wait for a workspace to run."""

    default_message = "The workspace does not run yet. Try again."
    code, status = "WAKE_TIMEOUT", 504


class FileConflict(Problem):
    """Conflict with what is in the workspace, such as a directory where a file is expected."""

    default_message = "The file is not what this call expects."
    code, status = "FILE_CONFLICT", 409


class PreconditionFailed(Problem):
    """Condition of a request, such as an ETag, that does not hold."""

    default_message = "The file has changed. Read it again."
    code, status = "PRECONDITION_FAILED", 412


class WorkspaceFailed(Problem):
    """Failure inside the workspace that is not CodeHub's."""

    default_message = "The workspace ended the operation."
    code, status = "WORKSPACE_FAILED", 502


class UpstreamUnavailable(Problem):
    """Lack of an answer from what the request is for, such as a port of a workspace."""

    default_message = "Nothing answers there."
    code, status = "UPSTREAM_UNAVAILABLE", 502


class WorkspaceStalled(Problem):
    """Time limit that the workspace has exceeded."""

    default_message = "The workspace did not finish in time. Try again."
    code, status = "WORKSPACE_STALLED", 504


def sentence(text: str) -> str:
    """Return the text of an error as a sentence."""
    return f"{text[:1].upper()}{text[1:]}."
