"""Dependencies that the handlers of one process share."""

import asyncio
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Annotated

from fastapi import Depends, Request
from redis.asyncio import Redis
from sqlalchemy.ext.asyncio import AsyncEngine

from codehub.api.open_streams import OpenStreams
from codehub.api.sign_in_limit import SignInLimit
from codehub.asgi.credential_lookup import CredentialLookup
from codehub.asgi.credential_revocation import CredentialRevocations
from codehub.bus.events import Subscriptions
from codehub.clock import utc_now
from codehub.concurrency_limits import ConcurrencyLimit
from codehub.domain.cookie_names import SESSION_COOKIE, cookie_name
from codehub.domain.images import Image
from codehub.domain.ttl import TtlDefaults
from codehub.domain.user_limits import Limits
from codehub.images_file import offered_images
from codehub.settings import Settings


@dataclass(frozen=True)
class Config:
    """Settings as domain values."""

    settings: Settings

    @cached_property
    def limits(self) -> Limits:
        return Limits(
            self.settings.limits_max_running_per_user,
            self.settings.limits_max_running_global,
            self.settings.limits_max_workspaces_per_user,
            self.settings.limits_max_archive_bytes_per_user,
        )

    @cached_property
    def ttl(self) -> TtlDefaults:
        return self.settings.ttl_defaults

    @cached_property
    def images(self) -> tuple[Image, ...]:
        """The images that users can choose: those that this runtime can start."""
        return tuple(offered_images(self.settings.images_text, self.settings.runtime).values())

    @cached_property
    def default_image(self) -> str | None:
        """The image marked as default, or the first one if the runtime cannot start that image."""
        names = [image.name for image in self.images if image.default] + [image.name for image in self.images]
        return names[0] if names else None

    @cached_property
    def https(self) -> bool:
        return self.settings.base_url.startswith("https://")

    @cached_property
    def cookie_name(self) -> str:
        return cookie_name(SESSION_COOKIE, secure=self.https)


@dataclass(frozen=True)
class Services:
    config: Config
    engine: AsyncEngine
    redis: Redis
    subscriptions: Subscriptions
    credential_revocations: CredentialRevocations
    streams: OpenStreams
    stream_reads: asyncio.Semaphore
    """Bounds the connections and the snapshot batches in memory of all event streams together."""
    credential_lookup: CredentialLookup
    calls_per_user: ConcurrencyLimit
    searches_per_user: ConcurrencyLimit
    sign_in_limit: SignInLimit


def _services(request: Request) -> Services:
    services: Services = request.app.state.services
    return services


async def _now() -> datetime:
    return utc_now()


Shared = Annotated[Services, Depends(_services)]
Now = Annotated[datetime, Depends(_now)]  # one time for the whole request
