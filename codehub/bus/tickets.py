"""One-time tickets, which pass a session on from the platform's origin to a workspace's origin."""

import json
import secrets
from dataclasses import asdict, dataclass
from typing import Final

from redis.asyncio import Redis

_PREFIX: Final = "codehub:ticket:2:"
"""Contains the version of the content: a gateway of another version does not find the ticket, and
starts over."""


@dataclass(frozen=True)
class Ticket:
    """Ticket for one use: by this session, at this host, in the browser with this nonce."""

    session_hash: str
    workspace_id: str
    host: str
    nonce_hash: str


async def issue(redis: Redis, ticket: Ticket, seconds: int) -> str:
    token = secrets.token_urlsafe(32)
    await redis.set(_PREFIX + token, json.dumps(asdict(ticket)), ex=seconds)
    return token


async def consume(redis: Redis, token: str) -> Ticket | None:
    """Return and remove a ticket, atomically, or return None."""
    value = await redis.getdel(_PREFIX + token)
    return None if value is None else Ticket(**json.loads(value))
