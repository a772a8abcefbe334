"""What must be there before anything starts: images that can be read, a PostgreSQL, a Redis."""

import asyncio
from typing import Final

import asyncpg
from redis.asyncio import Redis
from redis.exceptions import AuthenticationError, RedisError, ResponseError
from sqlalchemy.engine import make_url

from codehub.cli.errors import CommandError
from codehub.database import accounts, backends, schema_version, workspace_queries
from codehub.database.engine import asyncpg_dsn, create_engine
from codehub.domain import images
from codehub.domain.images import Image, ImagesError
from codehub.settings import Settings

PATIENCE: Final = 10.0
OLDEST_REDIS: Final = (6, 2)
NO_ADMIN: Final = (
    "there is no admin yet: `codehub users create-admin` makes one, and so does `codehub migrate` with "
    "ADMIN_PASSWORD set"
)


class RequirementError(CommandError):
    """Something that CodeHub needs is not as it must be."""

    def __init__(self, message: str, advice: str) -> None:
        super().__init__(f"{message}: {advice}")
        self.message = message
        self.advice = advice


async def require_all(settings: Settings) -> None:
    """Everything that a part needs, or RequirementError (or SchemaError) with what is wrong and what to do."""
    offered_images(settings)
    await require_database(settings.database_url)
    await require_schema(settings.database_url)
    await require_redis(settings.redis_url)


def offered_images(settings: Settings) -> dict[str, Image]:
    """The images that the chosen runtime can start."""
    source = "the built-in list" if settings.images_file is None else f"IMAGES_FILE {settings.images_file}"
    try:
        offered = images.offered_images(settings.images_text, settings.runtime)
    except ImagesError as error:
        raise RequirementError(f"{source}: {error}", "correct the file") from error
    if not offered:
        raise RequirementError(
            f"{source} has no image that the {settings.runtime} runtime can start",
            f"give one of them a `{settings.runtime}` key",
        )
    return offered


async def require_database(url: str) -> None:
    """A PostgreSQL that lets us in."""
    place, advice = _database_address(url), "is a PostgreSQL running there, and is DATABASE_URL right?"
    try:
        async with asyncio.timeout(PATIENCE):
            connection = await asyncpg.connect(asyncpg_dsn(url))
            await connection.close()
    except asyncpg.PostgresError as error:
        message = f"the database at {place} lets nobody in ({_one_line(error)})"
        raise RequirementError(message, "correct DATABASE_URL, or the server") from error
    except (OSError, asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
        raise RequirementError(f"the database at {place} does not answer ({_one_line(error)})", advice) from error


async def admin_is_missing(settings: Settings) -> bool:
    engine = create_engine(settings.database_url)
    try:
        return not await accounts.has_admin(engine)
    finally:
        await engine.dispose()


async def require_schema(url: str) -> None:
    engine = create_engine(url)
    try:
        await schema_version.check_schema(engine)
    finally:
        await engine.dispose()


async def require_redis(url: str) -> str:
    """A Redis that lets us in; its version."""
    client = Redis.from_url(url)
    try:
        async with asyncio.timeout(PATIENCE):
            version = str((await client.info("server"))["redis_version"])
    except (OSError, RedisError) as error:
        raise _redis_error(url, error) from error
    finally:
        await client.aclose()
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST_REDIS:
        raise RequirementError(f"Redis at {_redis_address(url)} is too old ({version})", "install Redis 6.2 or later")
    return version


def _redis_error(url: str, error: Exception) -> RequirementError:
    """A refusal may come wrapped in a failure to connect."""
    if isinstance(error.__cause__ or error, AuthenticationError | ResponseError):
        message = f"Redis at {_redis_address(url)} lets nobody in ({_one_line(error)})"
        return RequirementError(message, "correct REDIS_URL, or the server")
    message = f"Redis at {_redis_address(url)} does not answer ({_one_line(error)})"
    return RequirementError(message, "is a Redis running there, and is REDIS_URL right?")


async def missing_image_warnings(settings: Settings) -> list[str]:
    """A sentence for each image that workspaces were made from and that is no longer offered."""
    offered = offered_images(settings)
    engine = create_engine(settings.database_url)
    try:
        async with engine.connect() as conn:
            used = await workspace_queries.image_refs(conn)
    finally:
        await engine.dispose()
    return [
        f"{count} workspace{'s' if count > 1 else ''} of the image {name!r} cannot start, because it is no "
        "longer offered: put it back into IMAGES_FILE"
        for name, count in sorted(used.items())
        if name not in offered
    ]


async def other_runtime_warnings(settings: Settings) -> list[str]:
    """A sentence for each runtime that workspaces are on and that this coordinator does not use."""
    engine = create_engine(settings.database_url)
    try:
        counted = await backends.count_by_runtime(engine)
    finally:
        await engine.dispose()
    return [
        f"CodeHub does not touch {count} workspace{'s' if count > 1 else ''} of the {name} runtime, because "
        f"RUNTIME is {settings.runtime}: set RUNTIME={name} to use that runtime again"
        for name, count in sorted(counted.items())
        if name != settings.runtime
    ]


def _database_address(url: str) -> str:
    """Without the password that a URL may hold."""
    parsed = make_url(url)
    host = parsed.host or parsed.query.get("host") or "the default socket"
    return f"{host}:{parsed.port}" if parsed.port else str(host)


def _redis_address(url: str) -> str:
    return url.rpartition("@")[2] if "@" in url else url.partition("://")[2]


def _one_line(error: BaseException) -> str:
    if isinstance(error, TimeoutError) and not str(error):
        return f"no answer within {PATIENCE:.0f} s"
    return " ".join(str(error).split()) or type(error).__name__
