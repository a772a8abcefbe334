"""`codehub migrate`: the schema, and the first steps of a new installation."""

import typer
from sqlalchemy.ext.asyncio import AsyncEngine

from codehub import log
from codehub.cli import data_directory, operator_database, requirements
from codehub.cli.errors import CommandError
from codehub.clock import utc_now
from codehub.coordinator.storage_claims import claim_storage, make_storage_location
from codehub.database import accounts, installation, migrate, schema_version
from codehub.domain.audit import CLI
from codehub.settings import Settings
from codehub.ulids import new_id


def run(settings: Settings) -> None:
    """Migrate, claim unclaimed storage, and create the first admin if ADMIN_PASSWORD is set."""
    log.configure("migrate", settings.log_level)
    operator_database.with_engine(settings, lambda engine: prepare(engine, settings))


async def prepare(engine: AsyncEngine, settings: Settings) -> None:
    await migrate.upgrade(operator_database.database_url(settings))
    typer.echo(f"the database is at schema {schema_version.head_revision()}")
    known = data_directory.installation_id(settings.data_dir)
    found = await installation.load_or_create_installation(engine, new_id(), settings.workspace_uid_base)
    if known is not None and known != found.id:
        raise CommandError(data_directory.installation_mismatch(settings.data_dir, known, found.id))
    await _claim(engine, settings, found.id)
    await _first_admin(engine, settings)


async def _claim(engine: AsyncEngine, settings: Settings, installation_id: str) -> None:
    claims = installation.PostgresClaims(engine)
    for where in await claim_storage(claims, make_storage_location(settings, installation_id), create=False):
        typer.echo(f"{where} is not on this machine: the first coordinator that leads claims it")


async def _first_admin(engine: AsyncEngine, settings: Settings) -> None:
    if await accounts.has_admin(engine):
        return
    if settings.admin_password is None:
        typer.echo(requirements.NO_ADMIN)
        return
    await accounts.ensure_admin(
        engine, settings.admin_username, settings.admin_password, actor=CLI, now=utc_now()
    )
    typer.echo(f"created the admin {settings.admin_username.lower()}")
