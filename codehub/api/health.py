"""`/healthz`, `/readyz`, `/metrics`: for the machines that look after this one."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel
from redis.exceptions import RedisError
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from codehub.api.metrics import Metrics
from codehub.api.services import Services, Shared
from codehub.store import schema, workspace_reads
from codehub.store.installation import PostgresClaims

router = APIRouter(tags=["health"])

PATIENCE: Final = 3.0
LEADER_SILENCE: Final = 30.0


class Alive(BaseModel):
    status: str = "ok"


class Check(BaseModel):
    ok: bool
    message: str


class Readiness(BaseModel):
    ready: bool
    checks: dict[str, Check]


class NotReadyError(Exception):
    """A dependency is not as it should be; the message says what to do about it."""


@router.get("/healthz")
async def healthz() -> Alive:
    return Alive()


@router.get("/readyz", responses={503: {"model": Readiness}})
async def readyz(services: Shared, response: Response) -> Readiness:
    # Those that ask PostgreSQL come one after the other, so that they share a connection.
    in_postgres = {"database": _database, "schema": _schema, "coordinator": _coordinator, "storage": _storage}
    found = await asyncio.gather(
        _look_in_turn(in_postgres, services), _look_in_turn({"redis": _redis}, services)
    )
    checks = found[0] | found[1]
    ready = all(check.ok for check in checks.values())
    response.status_code = 200 if ready else 503
    return Readiness(ready=ready, checks=checks)


@router.get("/metrics", response_class=Response)
async def metrics(request: Request) -> Response:
    known: Metrics = request.app.state.metrics
    content, media_type = known.exposition()
    return Response(content, media_type=media_type)


async def _look_in_turn(
    looks: Mapping[str, Callable[[Services], Awaitable[str]]], services: Services
) -> dict[str, Check]:
    return {name: await _look(name, look, services) for name, look in looks.items()}


async def _look(name: str, look: Callable[[Services], Awaitable[str]], services: Services) -> Check:
    try:
        async with asyncio.timeout(PATIENCE):
            return Check(ok=True, message=await look(services))
    except NotReadyError as error:
        return Check(ok=False, message=str(error))
    except TimeoutError:
        return Check(ok=False, message=f"The {name} check had no answer within {PATIENCE:.0f} s.")


async def _database(services: Services) -> str:
    try:
        async with services.engine.connect() as conn:
            await conn.execute(text("SELECT 1"))
    except (SQLAlchemyError, OSError) as error:
        raise NotReadyError(
            f"PostgreSQL does not answer ({type(error).__name__}): start it, or correct DATABASE_URL."
        ) from error
    return "PostgreSQL answers."


async def _schema(services: Services) -> str:
    try:
        await schema.check(services.engine)
    except schema.SchemaError as error:
        raise NotReadyError(f"{error}.") from error
    except (SQLAlchemyError, OSError) as error:
        raise NotReadyError("The schema's version is unknown while PostgreSQL does not answer.") from error
    return f"The schema is at version {schema.head()}."


async def _redis(services: Services) -> str:
    try:
        await services.redis.ping()
    except (RedisError, OSError) as error:
        raise NotReadyError(
            f"Redis does not answer ({type(error).__name__}): start it, or correct REDIS_URL."
        ) from error
    return "Redis answers."


async def _coordinator(services: Services) -> str:
    try:
        async with services.engine.connect() as conn:
            leader = await workspace_reads.leader(conn)
    except (SQLAlchemyError, OSError) as error:
        raise NotReadyError("Who leads is unknown while PostgreSQL does not answer.") from error
    if leader is None or leader.heartbeat_age is None:
        raise NotReadyError("No coordinator has ever led: start one with `codehub serve coordinator`.")
    if leader.heartbeat_age > LEADER_SILENCE:
        raise NotReadyError(
            f"The leader {leader.holder} has been silent for {leader.heartbeat_age:.0f} s: no workspace "
            "starts or stops until a coordinator runs again (`codehub serve coordinator`; see its log)."
        )
    return f"{leader.holder} leads."


async def _storage(services: Services) -> str:
    try:
        unclaimed = await PostgresClaims(services.engine).unclaimed()
    except (SQLAlchemyError, OSError) as error:
        raise NotReadyError("The database cannot be asked whether the storage is claimed.") from error
    if unclaimed:
        raise NotReadyError(
            f"Not claimed yet: {' and '.join(sorted(unclaimed))}. Until then no workspace starts. The log of "
            "the leading coordinator names the reason."
        )
    return "The volumes and the archive store are claimed."
