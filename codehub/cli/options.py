"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from codehub.settings import Settings

DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        help="The directory for all data (CODEHUB_DATA_DIR; /var/lib/codehub for root, "
        "else ~/.local/share/codehub).",
    ),
]


def load_settings(**given: object) -> Settings:
    """Return the settings of the environment, overridden by the options of the command line."""
    from codehub import settings

    return settings.load(**{name: value for name, value in given.items() if value is not None})
