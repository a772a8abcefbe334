"""Errors that a person at the command line is told in one sentence."""

import contextlib
from collections.abc import Iterator
from typing import NoReturn

import typer


class CommandError(Exception):
    """The command cannot be done; the message says why and what to do."""


@contextlib.contextmanager
def report_errors() -> Iterator[None]:
    """Ends the command with a sentence on standard error instead of a traceback."""
    try:
        yield
    except Exception as error:
        sentence = error_message(error)
        if sentence is None:
            raise
        fail(sentence)


def fail(message: str) -> NoReturn:
    typer.secho(f"codehub: {message}", fg=typer.colors.RED, err=True)
    raise typer.Exit(1)


def error_message(error: Exception) -> str | None:
    """Return a sentence for the person at the command line; None for a defect of CodeHub.

    The packages are imported here, where they are needed: a part of the system should not load all of them.
    """
    if isinstance(error, CommandError | OSError):
        return str(error)
    from redis.exceptions import RedisError
    from sqlalchemy.exc import DBAPIError

    from codehub.cli.workers import WorkersError
    from codehub.database.installation import UidBaseMismatch
    from codehub.database.schema_version import SchemaError
    from codehub.domain.images import ImagesError
    from codehub.domain.problems import Problem
    from codehub.embedded.server_account import EmbeddedError
    from codehub.runtimes.base import RuntimeFailure
    from codehub.settings import SettingsError
    from codehub.storage.errors import StorageProblem

    if isinstance(error, DBAPIError):
        return f"the database refused: {error.orig}"
    if isinstance(error, RedisError):
        return f"Redis does not answer: {error}"
    known = (
        EmbeddedError, ImagesError, UidBaseMismatch, Problem, RuntimeFailure, SchemaError, SettingsError,
        StorageProblem, WorkersError,
    )  # fmt: skip
    return str(error) if isinstance(error, known) else None
