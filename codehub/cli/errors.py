"""Errors that a person at the command line is told in one sentence."""

import contextlib
from collections.abc import Iterator
from typing import NoReturn

import typer
from redis.exceptions import RedisError
from sqlalchemy.exc import DBAPIError

from codehub.domain.images import ImagesError
from codehub.domain.problems import Problem
from codehub.embedded.account import EmbeddedError
from codehub.runtimes.base import RuntimeFailure
from codehub.settings import SettingsError
from codehub.storage.errors import StorageProblem
from codehub.store.migrate import SchemaError


class CommandError(Exception):
    """The command cannot be done; the message says why and what to do."""


@contextlib.contextmanager
def told() -> Iterator[None]:
    """Ends the command with a sentence on standard error instead of a traceback."""
    try:
        yield
    except (
        CommandError,
        EmbeddedError,
        ImagesError,
        SettingsError,
        SchemaError,
        StorageProblem,
        Problem,
    ) as error:
        fail(str(error))
    except RuntimeFailure as error:
        fail(error.message)
    except DBAPIError as error:
        fail(f"the database refused: {error.orig}")
    except RedisError as error:
        fail(f"Redis does not answer: {error}")
    except OSError as error:
        fail(str(error))


def fail(message: str) -> NoReturn:
    typer.secho(f"codehub: {message}", fg=typer.colors.RED, err=True)
    raise typer.Exit(1)
