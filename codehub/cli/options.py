"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

from codehub import settings

DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        help="Where everything is kept (CODEHUB_DATA_DIR; /var/lib/codehub for root, "
        "else ~/.local/share/codehub).",
    ),
]


def load_settings(**given: object) -> settings.Settings:
    """The environment's settings, with what the command line says on top."""
    return settings.load(**{name: value for name, value in given.items() if value is not None})
