"""What `codehub up` does to the database before the parts start, as a short-lived process of its own.

It migrates the schema, marks what belongs to this installation and makes the first admin.
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
from codehub.database import accounts, backends, installation, schema_version
from codehub.database.engine import create_engine
from codehub.domain.audit import Actor, ActorKind
from codehub.runtimes.base import RuntimeFailure, Unobservable
from codehub.settings import Settings
from codehub.ulids import new_id

logger = structlog.get_logger(__name__)

RUNTIME_COLUMN_RELIABLE_SINCE = "0009"
"""The first schema whose workspaces are on the runtime that their rows name."""


def main() -> None:
    """Prepare the database that the environment names; print the outcome as JSON for `codehub up`."""
    settings = load_settings()
    try:
        with (settings.data_dir / "logs" / "up.log").open("a") as audit:  # the terminal is for sentences
            log.configure("up", settings.log_level, audit=audit)
            answer = {"password": asyncio.run(_prepare(settings))}
    except Exception as error:
        sentence = error_message(error)
        if sentence is None:
            raise
        answer = {"error": sentence}
    json.dump(answer, sys.stdout)


async def _prepare(settings: Settings) -> str | None:
    before = await _migrate(settings.database_url)
    engine = create_engine(settings.database_url)
    try:
        known = data_directory.installation_id(settings.data_dir)
        found = await installation.ensure(engine, known or new_id(), settings.workspace_uid_base)
        if known == found.id:
            await move_from_other_runtime(engine, settings, found.id, before)
        for sentence in (
            *await requirements.missing_image_warnings(settings), *await requirements.other_runtime_warnings(settings)
        ):  # fmt: skip
            typer.echo(sentence, err=True)
        where = make_storage_location(settings, found.id)
        await data_directory.claim_or_check_storage(settings.data_dir, where, installation.PostgresClaims(engine))
        actor = Actor(ActorKind.SYSTEM, "up")
        return await accounts.ensure_admin(
            engine, settings.admin_username, settings.admin_password, actor=actor, now=utc_now()
        )
    finally:
        await engine.dispose()


async def move_from_other_runtime(
    engine: AsyncEngine, settings: Settings, installation_id: str, schema_before: str | None
) -> None:
    """Put the workspaces of the other runtime on this one, once none of their containers is left.

    `up` has ended those containers before it gets here if its note names the other runtime. Without a note,
    they are ended here; an engine that does not answer then counts as gone, since removing the note is how
    an operator says so. A note of this runtime means that the last `up` used it: then the workspaces came
    from elsewhere and are left alone, unless the schema is so old that nothing kept the column true.
    """
    from codehub.cli import runtime_choice  # with the coordinator, which the other parts do not load

    noted = runtime_choice.last_runtime(settings.data_dir)
    is_old = schema_before is not None and schema_before < RUNTIME_COLUMN_RELIABLE_SINCE
    if noted == settings.runtime and not is_old:
        return
    other: Literal["process", "docker"] = "process" if settings.runtime == "docker" else "docker"
    if other not in await backends.count_by_runtime(engine):
        return
    if noted is None:
        try:
            await runtime_choice.delete_all_containers(settings.model_copy(update={"runtime": other}), installation_id)
        except (RuntimeFailure, Unobservable) as trouble:
            logger.warning("the containers of the other runtime count as gone", reason=str(trouble))
    await backends.move_all(engine, other, settings.runtime)


async def _migrate(database_url: str) -> str | None:
    """Bring the schema to this version; return the one before, or None for an empty database.

    The migration tool is loaded only when there is something to do.
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
