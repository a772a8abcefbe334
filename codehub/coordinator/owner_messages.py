"""Messages for owners: without paths of the host, which go to the log."""

from dataclasses import replace
from typing import Final, TypeVar

import structlog

from codehub.domain.observation import ContainerFact, JobFact, Unknown
from codehub.domain.path_redaction import PathRedactor

logger = structlog.get_logger(__name__)

_REMEMBERED: Final = 1000

Fact = TypeVar("Fact")


class UserMessages:
    """Filter for what providers report. Rows are compared with later looks, so it comes before decisions."""

    def __init__(self, paths: PathRedactor | None = None) -> None:
        self._paths = paths or PathRedactor()
        self._logged: set[str] = set()

    def for_users(self, message: str) -> str:
        shown = self._paths.hide(message)
        if shown != message and message not in self._logged:
            if len(self._logged) >= _REMEMBERED:
                self._logged.clear()
            self._logged.add(message)
            logger.warning("a problem, with the paths that its owner does not see", problem=message)
        return shown

    def in_fact(self, fact: Fact) -> Fact:
        """Return the fact with its message, if it has one, as users may see it."""
        if isinstance(fact, Unknown | ContainerFact | JobFact) and fact.message:
            return replace(fact, message=self.for_users(fact.message))
        return fact
