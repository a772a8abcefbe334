"""Requirements of the parts: readable images, PostgreSQL with this version's schema, Redis."""

import asyncio
from typing import Final

import asyncpg
from redis.asyncio import Redis
from redis.exceptions import AuthenticationError, RedisError, ResponseError
from sqlalchemy.engine import make_url

from codehub import images_file
from codehub.cli.errors import CommandError
from codehub.database import accounts, schema_version, workspace_queries, workspace_runtimes
from codehub.database.engine import asyncpg_dsn, create_engine
from codehub.domain.images import Image
from codehub.images_file import ImagesError
from codehub.settings import Settings

TIMEOUT_SECONDS: Final = 10.0
OLDEST_REDIS: Final = (6, 2)
NO_ADMIN: Final = (
    "there is no admin yet: `codehub users create-admin` creates one, and so does `codehub migrate` with "
    "ADMIN_PASSWORD set"
)


class RequirementError(CommandError):
    """Unmet requirement. `advice` states the remedy."""

    def __init__(self, message: str, advice: str) -> None:
        super().__init__(f"{message}: {advice}")
        self.message = message
        self.advice = advice


async def require_all(settings: Settings) -> None:
    """Check everything that a part needs.

    Raise RequirementError or SchemaError if something is wrong.
    """
    offered_images(settings)
    await require_database(settings.database_url)
    await require_schema(settings.database_url)
    await require_redis(settings.redis_url)


def offered_images(settings: Settings) -> dict[str, Image]:
    """Return the images that the chosen runtime can start."""
    source = "the built-in list" if settings.images_file is None else f"IMAGES_FILE {settings.images_file}"
    try:
        offered = images_file.offered_images(settings.images_text, settings.runtime)
    except ImagesError as error:
        raise RequirementError(f"{source}: {error}", "correct the file") from error
    if not offered:
        raise RequirementError(
            f"{source} has no image that the {settings.runtime} runtime can start",
            f"give one of them a `{settings.runtime}` key",
        )
    return offered


async def require_database(url: str) -> None:
    """Connect to PostgreSQL, or raise RequirementError."""
    address, advice = _database_address(url), "is a PostgreSQL running there, and is DATABASE_URL right?"
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            connection = await asyncpg.connect(asyncpg_dsn(url))
            await connection.close()
    except asyncpg.PostgresError as error:
        message = f"the database at {address} rejected the connection ({_one_line(error)})"
        raise RequirementError(message, "correct DATABASE_URL, or the server") from error
    except (OSError, asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
        raise RequirementError(
            f"the database at {address} does not answer ({_one_line(error)})", advice
        ) from error


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
    """Connect to Redis and return its version, or raise RequirementError."""
    client = Redis.from_url(url)
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            version = str((await client.info("server"))["redis_version"])
    except (OSError, RedisError) as error:
        raise _redis_error(url, error) from error
    finally:
        await client.aclose()
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST_REDIS:
        raise RequirementError(
            f"Redis at {_redis_address(url)} is too old ({version})", "install Redis 6.2 or later"
        )
    return version


def _redis_error(url: str, error: Exception) -> RequirementError:
    """Return the requirement that the error violates.

    A rejected login may be wrapped in another error.
    """
    if isinstance(error.__cause__ or error, AuthenticationError | ResponseError):
        message = f"Redis at {_redis_address(url)} rejected the connection ({_one_line(error)})"
        return RequirementError(message, "correct REDIS_URL, or the server")
    message = f"Redis at {_redis_address(url)} does not answer ({_one_line(error)})"
    return RequirementError(message, "is a Redis running there, and is REDIS_URL right?")


async def missing_image_warnings(settings: Settings) -> list[str]:
    """Return a warning for each image that workspaces use and that is no longer offered."""
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
    """Return a warning for each runtime that workspaces use and this coordinator does not."""
    engine = create_engine(settings.database_url)
    try:
        counted = await workspace_runtimes.count_by_runtime(engine)
    finally:
        await engine.dispose()
    return [
        f"CodeHub does not touch {count} workspace{'s' if count > 1 else ''} of the {name} runtime, because "
        f"RUNTIME is {settings.runtime}: set RUNTIME={name} to use that runtime again"
        for name, count in sorted(counted.items())
        if name != settings.runtime
    ]


def _database_address(url: str) -> str:
    """Return the host and port, without the password that a URL may hold."""
    parsed = make_url(url)
    host = parsed.host or parsed.query.get("host") or "the default socket"
    return f"{host}:{parsed.port}" if parsed.port else str(host)


def _redis_address(url: str) -> str:
    return url.rpartition("@")[2] if "@" in url else url.partition("://")[2]


def _one_line(error: BaseException) -> str:
    if isinstance(error, TimeoutError) and not str(error):
        return f"no answer within {TIMEOUT_SECONDS:.0f} s"
    return " ".join(str(error).split()) or type(error).__name__
