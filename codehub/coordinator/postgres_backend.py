"""The backend of a real coordinator: leader election and rows in PostgreSQL, activity in Redis."""

import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta

from redis.asyncio import Redis

from codehub.bus.activity import ActivityLog
from codehub.bus.usage_samples import UsageSamples
from codehub.coordinator.event_listener import EventListener
from codehub.coordinator.leader_interfaces import LeaderServices, LeadershipTerm
from codehub.database import leadership
from codehub.database.engine import create_engine, open_pool
from codehub.database.leader_database import PostgresLeaderDatabase
from codehub.settings import Settings

REDIS_TIMEOUT = 5.0
"""Seconds. A Redis that hangs must not delay the TTLs or the events."""
CONNECTIONS = 10
"""PostgreSQL connections of the controller. The runners have others."""


class PostgresBackend:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    async def campaign(self) -> LeadershipTerm | None:
        return await leadership.campaign(self._settings.database_url, f"{socket.gethostname()}:{os.getpid()}")

    @asynccontextmanager
    async def leader_services(self, term: LeadershipTerm) -> AsyncIterator[LeaderServices]:
        settings = self._settings
        engine = create_engine(settings.database_url, pool_size=1)
        redis = Redis.from_url(
            settings.redis_url,
            socket_connect_timeout=REDIS_TIMEOUT,
            socket_timeout=REDIS_TIMEOUT,
        )
        retention = timedelta(seconds=settings.trash_retention_seconds)

        async def listen(hint: Callable[[str], None], resync: Callable[[], None]) -> None:
            await EventListener(
                settings.database_url,
                redis,
                sse_prefix=settings.redis_channel_sse_prefix,
                hint=hint,
                resync=resync,
            ).run()

        try:
            async with engine.connect():  # it stays open: a full disk may prevent new ones (ADR 0019)
                pass
            async with open_pool(settings.database_url, CONNECTIONS, leadership.LOCK_TIMEOUT) as pool:
                database = PostgresLeaderDatabase(pool, engine, term.epoch, retention, settings.backends)
                yield LeaderServices(database, ActivityLog(redis), UsageSamples(redis), listen)
        finally:
            await engine.dispose()
            await redis.aclose()
