"""Listener for the notifications that PostgreSQL sends to the gateway when a change is committed."""

import json
from typing import Final

import structlog

from codehub.database.notifications import NotificationListener
from codehub.gateway.revocation import RevocationHandler

logger = structlog.get_logger(__name__)

PING_SECONDS: Final = 1.0
ANSWER_SECONDS: Final = 3.0
LONGEST_PAUSE: Final = 2.0
CHANNELS: Final = ("route_changed", "session_ended", "user_changed")


class InvalidationListener:
    """Subscriber that turns notifications into invalidations of the route cache and revocations."""

    def __init__(self, database_url: str, revocation: RevocationHandler) -> None:
        self._revocation = revocation
        self._listener = NotificationListener(
            database_url,
            CHANNELS,
            self._on_notification,
            on_connected=self._on_connected,
            on_answer=revocation.on_channel_answered,
            on_interrupted=revocation.on_channel_lost,
            probe_interval=PING_SECONDS,
            timeout=ANSWER_SECONDS,
            longest_pause=LONGEST_PAUSE,
        )

    async def run(self) -> None:
        """Listen until cancelled."""
        await self._listener.run()

    async def _on_connected(self) -> None:
        self._revocation.on_channel_regained()

    def _on_notification(self, channel: str, payload: str) -> None:
        try:
            fields = json.loads(payload)
            if channel == "session_ended":
                self._revocation.on_session_ended(bytes.fromhex(fields["id_hash"]))
            elif channel == "user_changed":
                self._revocation.on_user_changed(str(fields["id"]))
            else:
                self._revocation.on_route_changed(str(fields["id"]))
        except (ValueError, KeyError, TypeError):
            logger.warning("a notification is unreadable", channel=channel)
            self._revocation.on_unreadable_notification()
