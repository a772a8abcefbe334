"""Tickets: how a session that the platform checked is handed over to a workspace's own origin."""

import json
import secrets
from dataclasses import asdict, dataclass
from typing import Final

from redis.asyncio import Redis

_PREFIX: Final = "codehub:ticket:2:"
"""With the version of its content: a gateway of another version does not find the ticket, and starts over."""


@dataclass(frozen=True)
class Ticket:
    """Good once, for this session at this workspace's host, in the browser that has the nonce."""

    session_hash: str
    workspace_id: str
    host: str
    nonce_hash: str


async def issue(redis: Redis, ticket: Ticket, seconds: int) -> str:
    token = secrets.token_urlsafe(32)
    await redis.set(_PREFIX + token, json.dumps(asdict(ticket)), ex=seconds)
    return token


async def consume(redis: Redis, token: str) -> Ticket | None:
    """The ticket, taken out atomically: a second visitor with the same token gets nothing."""
    value = await redis.getdel(_PREFIX + token)
    return None if value is None else Ticket(**json.loads(value))
