"""What `codehub up` does to the database before the parts start, as a short-lived process of its own.

It migrates the schema, marks what belongs to this installation and makes the first admin.
"""

import asyncio
import json
import sys

import typer
from ulid import ULID

from codehub import log
from codehub.cli import needs, place
from codehub.cli.errors import explanation
from codehub.cli.options import load_settings
from codehub.clock import utc_now
from codehub.coordinator.claims import make_place
from codehub.settings import Settings
from codehub.store import accounts, installation, schema
from codehub.store.engine import create_engine


def main() -> None:
    """Prepare the database that the environment names; print the outcome as JSON for `codehub up`."""
    settings = load_settings()
    log.configure("up", settings.log_level)
    try:
        answer = {"password": asyncio.run(_prepare(settings))}
    except Exception as error:
        sentence = explanation(error)
        if sentence is None:
            raise
        answer = {"error": sentence}
    json.dump(answer, sys.stdout)


async def _prepare(settings: Settings) -> str | None:
    await _migrate(settings.database_url)
    for sentence in await needs.missing_images(settings):
        typer.echo(sentence, err=True)
    engine = create_engine(settings.database_url)
    try:
        candidate = place.installation_id(settings.data_dir) or str(ULID()).lower()
        found = await installation.ensure(engine, candidate, settings.workspace_uid_base)
        where = make_place(settings, found.id)
        await place.settle(settings.data_dir, where, installation.PostgresClaims(engine))
        return await accounts.ensure_admin(
            engine, settings.admin_username, settings.admin_password, now=utc_now()
        )
    finally:
        await engine.dispose()


async def _migrate(database_url: str) -> None:
    """Bring the schema to this version. The migration tool is loaded only when there is something to do."""
    engine = create_engine(database_url)
    try:
        async with engine.connect() as conn:
            found = await schema.found_in(conn)
    finally:
        await engine.dispose()
    if found != schema.head():
        from codehub.store import migrate

        await migrate.upgrade(database_url)
