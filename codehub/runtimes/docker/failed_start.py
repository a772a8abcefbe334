"""Messages of the engine about a command that it could not start. Pure functions."""

from __future__ import annotations

from codehub.runtimes.exec_monitor import CANNOT_RUN, NOT_FOUND
from codehub.runtimes.exec_request import ExecRequest

_NO_DIRECTORY = "chdir to cwd"
_MISSING = ("executable file not found", "no such file or directory")
_DENIED = "permission denied"


def explain_failed_start(message: str, request: ExecRequest) -> tuple[int, str]:
    """Return the exit code and the message that a shell would have: 127 for an unknown command."""
    text = message.strip()
    if _NO_DIRECTORY in text:
        why = "Permission denied" if _DENIED in text else "No such file or directory"
        return CANNOT_RUN, f"{request.command[0]}: the directory {request.cwd!r} cannot be entered: {why}"
    if any(part in text for part in _MISSING):
        return NOT_FOUND, f"{request.command[0]}: No such file or directory"
    if _DENIED in text:
        return CANNOT_RUN, f"{request.command[0]}: Permission denied"
    return CANNOT_RUN, f"{request.command[0]}: {text or 'it did not start'}"
