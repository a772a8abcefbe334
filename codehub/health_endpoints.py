"""Handlers of the internal listener: liveness, readiness and metrics."""

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Final

from asyncpg import Connection, Record
from redis.asyncio import Redis
from redis.exceptions import RedisError

from codehub.bus.write_rejections import rejects_writes
from codehub.database import health_checks, schema_version
from codehub.database.engine import CONNECTION_ERRORS
from codehub.domain.health_checks import (
    LEADER_CHECKS,
    CheckName,
    CheckResult,
    Readiness,
    judge_claims,
    judge_database_space,
    judge_heartbeat,
    judge_leader_check,
    unknown,
    with_remedies,
)
from codehub.internal_http import Handler, Response

CHECK_TIMEOUT: Final = 3.0
"""Seconds that a check of one service may take."""
PROBE_KEY: Final = "codehub:readiness"
"""Key that is written to check whether Redis accepts writes."""

Exposition = Callable[[], tuple[bytes, str]]
"""The metrics in Prometheus' text format, and its content type."""


def handlers(database_url: str, redis_url: str, metrics: Exposition) -> Mapping[str, Handler]:
    async def healthz() -> Response:
        return _json(200, {"status": "ok"})

    async def readyz() -> Response:
        found = await check_readiness(database_url, redis_url)
        return _json(200 if found.ready else 503, as_json(found))

    async def exposition() -> Response:
        return Response(200, *metrics())

    return {"/healthz": healthz, "/readyz": readyz, "/metrics": exposition}


def as_json(found: Readiness) -> dict[str, object]:
    return {
        "ready": found.ready,
        "degraded": found.degraded,
        "checks": {name: asdict(check) for name, check in found.checks.items()},
    }


async def check_readiness(database_url: str, redis_url: str) -> Readiness:
    """Check PostgreSQL and Redis, and read the results of the leader's checks."""
    database, redis = await asyncio.gather(_check_database(database_url), _check_redis(redis_url))
    return with_remedies({**database, CheckName.REDIS: redis})


async def _check_database(url: str) -> dict[CheckName, CheckResult]:
    try:
        async with asyncio.timeout(CHECK_TIMEOUT):
            connection = await health_checks.connect(url, CHECK_TIMEOUT)
            try:
                return await _check_contents(connection)
            finally:
                connection.terminate()
    except TimeoutError:
        failure = f"PostgreSQL did not answer within {CHECK_TIMEOUT:.0f} s."
    except CONNECTION_ERRORS as error:
        failure = f"PostgreSQL does not answer ({type(error).__name__})."
    rest = unknown("PostgreSQL does not answer.")
    return dict.fromkeys(CheckName, rest) | {CheckName.DATABASE: CheckResult(False, failure)}


async def _check_contents(connection: "Connection[Record]") -> dict[CheckName, CheckResult]:
    answers = {CheckName.DATABASE: CheckResult(True, "PostgreSQL answers.")}
    revision = await health_checks.read_revision(connection)
    try:
        schema_version.check_revision(revision)
    except schema_version.SchemaError as error:
        rest = unknown("the schema is not the one of this version.")
        return dict.fromkeys(CheckName, rest) | answers | {CheckName.SCHEMA: CheckResult(False, f"{error}.")}
    recorded = await health_checks.read_health(connection)
    return (
        answers
        | {
            CheckName.DATABASE_SPACE: judge_database_space(await health_checks.can_write_to_disk(connection)),
            CheckName.SCHEMA: CheckResult(True, f"The schema is at version {revision}."),
            CheckName.COORDINATOR: judge_heartbeat(recorded.heartbeat),
            CheckName.STORAGE: judge_claims(recorded.unclaimed),
        }
        | {name: judge_leader_check(recorded.checks.get(name)) for name in LEADER_CHECKS}
    )


async def _check_redis(url: str) -> CheckResult:
    client = Redis.from_url(url, socket_connect_timeout=CHECK_TIMEOUT, socket_timeout=CHECK_TIMEOUT)
    try:
        async with asyncio.timeout(CHECK_TIMEOUT):
            await client.ping()
            await client.set(PROBE_KEY, "", ex=60)
    except TimeoutError:
        return CheckResult(False, f"Redis did not answer within {CHECK_TIMEOUT:.0f} s.")
    except (RedisError, OSError) as error:
        if rejects_writes(error):
            return CheckResult(False, "Redis answers, but rejects writes: its disk or its memory is full.")
        return CheckResult(False, f"Redis does not answer ({type(error).__name__}).")
    finally:
        await client.aclose()
    return CheckResult(True, "Redis answers.")


def _json(status: int, content: dict[str, object]) -> Response:
    return Response(status, json.dumps(content).encode() + b"\n", "application/json")
