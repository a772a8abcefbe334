"""Errors of the SDK as texts for agents: the server's code and message, and what to do."""

from typing import Final

from codehub.client import errors

_AGAIN: Final = "Try again later."
_BY_CODE: Final = {
    "WORKSPACE_NOT_FOUND": "Call list_workspaces for the names and ids.",
    "AMBIGUOUS": "Call list_workspaces, and use an id.",
    "INVALID_STATE": "Call get_workspace to see its state. If it does not run, call start_workspace.",
    "WAKE_TIMEOUT": "Call get_workspace until it is RUNNING.",
}
_BY_KIND: Final[tuple[tuple[type[Exception], str], ...]] = (
    (errors.Unauthorized, "The token is not valid any more. Ask the user for another one."),
    (errors.Forbidden, "Ask the user for a token that permits it, or for permission in the workspace."),
    (errors.NotFound, "Check the path or the id."),
    (errors.PreconditionFailed, "The file was changed since. Call read_file, and base your change on that."),
    (errors.Gone, "It cannot be had any more."),
    (errors.RangeNotSatisfiable, "Use a smaller offset."),
    (errors.InvalidRequest, "Correct the arguments."),
    (errors.TooManyRequests, "Wait, or end what is under way: list_commands, kill_command, stop_workspace."),
    (errors.Conflict, "Check the state of what you named."),
    (errors.ServerError, _AGAIN),
    (errors.WorkspaceFailed, "Ask the user to recover it in the dashboard."),
    (errors.FileChanged, "Read it again."),
    (errors.UnexpectedAnswer, "Ask the user to check the server's address, and what is in front of it."),
)  # fmt: skip


def explain(problem: errors.CodehubError) -> str:
    """Return the code, the message, and what to do."""
    if isinstance(problem, errors.ApiError):
        return f"{problem.code}: {problem.message} {_advice(problem)}"
    return f"{_name(problem)}: {problem} {_advice(problem)}".rstrip()


def _advice(problem: errors.CodehubError) -> str:
    if isinstance(problem, errors.ConnectionFailed):
        if problem.may_have_happened:
            return "It may have been done all the same. Check that before you repeat it."
        return "Nothing was done. Try again later."
    if isinstance(problem, errors.ApiError) and problem.code in _BY_CODE:
        return _BY_CODE[problem.code]
    found = next((advice for kind, advice in _BY_KIND if isinstance(problem, kind)), "")
    if isinstance(problem, errors.ApiError) and problem.retry_after:
        return f"{found} Wait {problem.retry_after:g} s first."
    return found


def _name(problem: errors.CodehubError) -> str:
    """Return a code for an error that no server has answered with."""
    words = (f"_{char}" if char.isupper() else char for char in type(problem).__name__)
    return "".join(words).lstrip("_").upper()
