"""Bound on the answers of a user that are in memory as a whole."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends
from starlette.requests import HTTPConnection

from codehub.access.services import AccessServices, Shared
from codehub.asgi.callers import current_credential


@dataclass(frozen=True)
class WholeAnswer:
    """Answer that is made as a whole. Those of one user wait for each other."""

    _services: AccessServices
    _user_id: str
    _stack: AsyncExitStack

    async def begin(self) -> None:
        """Wait for a slot, and keep it until the answer has left this process."""
        await self._stack.enter_async_context(self._services.answers_per_user.slot(self._user_id))


async def _answer(connection: HTTPConnection, services: Shared) -> AsyncIterator[WholeAnswer]:
    async with AsyncExitStack() as stack:
        yield WholeAnswer(services, current_credential(connection).user_id, stack)


Answer = Annotated[WholeAnswer, Depends(_answer)]
