"""Filter of messages for owners. Paths of the host appear in the log only."""

from dataclasses import replace
from typing import Final, TypeVar

import structlog

from codehub.domain.observation import ContainerFact, JobFact, Unknown
from codehub.domain.path_redaction import PathRedactor

logger = structlog.get_logger(__name__)

_MAX_LOGGED: Final = 1000

Fact = TypeVar("Fact")


class OwnerMessageFilter:
    """Filter that replaces host paths in messages of providers.

    It runs before decisions, because rows are compared with later observations.
    """

    def __init__(self, paths: PathRedactor | None = None) -> None:
        self._paths = paths or PathRedactor()
        self._logged: set[str] = set()

    def redact_message(self, message: str) -> str:
        shown = self._paths.redact(message)
        if shown != message and message not in self._logged:
            if len(self._logged) >= _MAX_LOGGED:
                self._logged.clear()
            self._logged.add(message)
            logger.warning(
                "a provider reported a problem; the owner sees it without host paths", problem=message
            )
        return shown

    def redact_fact(self, fact: Fact) -> Fact:
        """Return the fact with its message, if it has one, filtered for users."""
        if isinstance(fact, Unknown | ContainerFact | JobFact) and fact.message:
            return replace(fact, message=self.redact_message(fact.message))
        return fact
