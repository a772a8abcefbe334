"""Errors that end a command with one sentence instead of a traceback."""

import contextlib
from collections.abc import Iterator
from typing import NoReturn

import typer


class CommandError(Exception):
    """Failure of a command. The message states the cause and the remedy."""


@contextlib.contextmanager
def report_errors() -> Iterator[None]:
    """Print an expected error as one sentence on standard error, and exit with code 1."""
    try:
        yield
    except Exception as error:
        message = error_message(error)
        if message is None:
            raise
        fail(message)


def fail(message: str) -> NoReturn:
    """Print the message on standard error, and exit with code 1."""
    typer.secho(f"codehub: {message}", fg=typer.colors.RED, err=True)
    raise typer.Exit(1)


def error_message(error: Exception) -> str | None:
    """Return a sentence for the user, or None if the error is a bug in CodeHub.

    The packages are imported here, so that a part of the system does not load all of them.
    """
    if isinstance(error, CommandError | OSError):
        return str(error)
    from redis.exceptions import RedisError
    from sqlalchemy.exc import DBAPIError

    from codehub.cli.workers import WorkersError
    from codehub.database.installation import UidBaseMismatch
    from codehub.database.schema_version import SchemaError
    from codehub.domain.problems import Problem
    from codehub.embedded.server_account import EmbeddedError
    from codehub.images_file import ImagesError
    from codehub.runtimes.base import RuntimeFailure
    from codehub.settings import SettingsError
    from codehub.storage.errors import StorageProblem

    if isinstance(error, DBAPIError):
        return f"the database reported an error: {error.orig}"
    if isinstance(error, RedisError):
        return f"Redis does not answer: {error}"
    known = (
        EmbeddedError, ImagesError, UidBaseMismatch, Problem, RuntimeFailure, SchemaError, SettingsError,
        StorageProblem, WorkersError,
    )  # fmt: skip
    return str(error) if isinstance(error, known) else None
