"""Preparation of the database by `codehub up` before the parts start, in a short-lived process.

It migrates the schema, claims the storage for this installation and creates the first admin.
"""

import asyncio
import json
import sys
from typing import Literal

import structlog
import typer
from sqlalchemy.ext.asyncio import AsyncEngine

from codehub import log
from codehub.cli import data_directory, requirements
from codehub.cli.errors import error_message
from codehub.cli.options import load_settings
from codehub.clock import utc_now
from codehub.coordinator.storage_claims import make_storage_location
from codehub.database import accounts, installation, schema_version, workspace_runtimes
from codehub.database.engine import create_engine
from codehub.domain.audit import Actor, ActorKind
from codehub.runtimes.base import RuntimeFailure, RuntimeUnobservable
from codehub.settings import Settings
from codehub.ulids import new_id

logger = structlog.get_logger(__name__)

RUNTIME_COLUMN_RELIABLE_SINCE = "0009"
"""From this schema on, a row of a workspace names the runtime that the workspace uses."""


def main() -> None:
    """Prepare the database that the environment names.

    Print the outcome as JSON for `codehub up`.
    """
    settings = load_settings()
    try:
        with (settings.data_dir / "logs" / "up.log").open(
            "a"
        ) as audit:  # the terminal is for messages to the user
            log.configure("up", settings.log_level, audit=audit)
            result = {"password": asyncio.run(_prepare(settings))}
    except Exception as error:
        message = error_message(error)
        if message is None:
            raise
        result = {"error": message}
    json.dump(result, sys.stdout)


async def _prepare(settings: Settings) -> str | None:
    before = await _migrate(settings.database_url)
    engine = create_engine(settings.database_url)
    try:
        known = data_directory.installation_id(settings.data_dir)
        found = await installation.load_or_create_installation(
            engine, known or new_id(), settings.workspace_uid_base
        )
        if known == found.id:
            await move_from_other_runtime(engine, settings, found.id, before)
        for warning in (
            *await requirements.missing_image_warnings(settings),
            *await requirements.other_runtime_warnings(settings),
        ):
            typer.echo(warning, err=True)
        location = make_storage_location(settings, found.id)
        await data_directory.claim_or_check_storage(
            settings.data_dir, location, installation.PostgresClaims(engine)
        )
        actor = Actor(ActorKind.SYSTEM, "up")
        return await accounts.ensure_admin(
            engine, settings.admin_username, settings.admin_password, actor=actor, now=utc_now()
        )
    finally:
        await engine.dispose()


async def move_from_other_runtime(
    engine: AsyncEngine, settings: Settings, installation_id: str, schema_before: str | None
) -> None:
    """Move the workspaces of the other runtime to this one, once their containers are deleted.

    The data directory records the runtime of the last `up`. If that is the other runtime, `up` has
    already deleted its containers. If there is no record, they are deleted here. An engine that
    does not answer then counts as removed: an operator who removes an engine deletes the record. If
    the record names this runtime, the workspaces came from elsewhere and stay as they are, unless
    the schema is older than the column.
    """
    from codehub.cli import runtime_choice  # imports the coordinator, which the other parts do not load

    last = runtime_choice.last_runtime(settings.data_dir)
    is_old = schema_before is not None and schema_before < RUNTIME_COLUMN_RELIABLE_SINCE
    if last == settings.runtime and not is_old:
        return
    other: Literal["process", "docker"] = "process" if settings.runtime == "docker" else "docker"
    if other not in await workspace_runtimes.count_by_runtime(engine):
        return
    if last is None:
        try:
            await runtime_choice.delete_all_containers(
                settings.model_copy(update={"runtime": other}), installation_id
            )
        except (RuntimeFailure, RuntimeUnobservable) as problem:
            logger.warning("the containers of the other runtime count as deleted", reason=str(problem))
    await workspace_runtimes.move_all(engine, other, settings.runtime)


async def _migrate(database_url: str) -> str | None:
    """Migrate to this version's schema.

    Return the schema before that, or None for an empty database. The migration tool is loaded only
    when there is something to do.
    """
    engine = create_engine(database_url)
    try:
        async with engine.connect() as conn:
            found = await schema_version.read_revision(conn)
    finally:
        await engine.dispose()
    if found != schema_version.head_revision():
        from codehub.database import migrate

        await migrate.upgrade(database_url)
    return found
