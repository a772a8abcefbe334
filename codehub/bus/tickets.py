"""Tickets: how a session that the platform checked is handed over to a workspace's own origin."""

import json
import secrets
from dataclasses import asdict, dataclass
from typing import Final

from redis.asyncio import Redis

_PREFIX: Final = "codehub:ticket:"


@dataclass(frozen=True)
class Ticket:
    """Good once, for this session at this workspace's host."""

    session_hash: str
    workspace_id: str
    host: str


async def issue(redis: Redis, ticket: Ticket, seconds: int) -> str:
    token = secrets.token_urlsafe(32)
    await redis.set(_PREFIX + token, json.dumps(asdict(ticket)), ex=seconds)
    return token


async def consume(redis: Redis, token: str) -> Ticket | None:
    """The ticket, taken out atomically: a second visitor with the same token gets nothing."""
    value = await redis.getdel(_PREFIX + token)
    return None if value is None else Ticket(**json.loads(value))
