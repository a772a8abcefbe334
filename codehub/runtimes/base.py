"""What every runtime does, whatever a container is made of there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from codehub.domain.images import Image
from codehub.domain.observation import ContainerFact, Unknown
from codehub.domain.states import ErrorReason

ABSENT = ContainerFact(exists=False, running=False, ready=False, upstream=None, op_id=None)

_LONGEST_WORDS = 2000
_FIRST_PATH = re.compile(r"\A[^\s/]*/\S*\s*")
_UNSPEAKABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


@dataclass(frozen=True)
class WorkloadSpec:
    """One container to start. `op_id` is the operation that wants it; `uid` who it runs as, under root.

    `name` is the workspace's, as its owner typed it. If it is empty, the id takes its place.
    """

    workspace_id: str
    image: Image
    home: Path
    op_id: str
    uid: int | None
    name: str = ""


class RuntimeFailure(Exception):  # noqa: N818 - a fact, not a fault
    """The runtime could not do what it was asked to."""

    def __init__(self, reason: ErrorReason, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


class Unobservable(Exception):  # noqa: N818 - a fact, not a fault
    """The runtime could not look; what it last saw still stands, and nothing may read as gone."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


def output_excerpt(text: str) -> str:
    """The end of what a workspace said, fit for a message: no database takes NULs, and nobody reads pages.

    A path that loses its beginning goes as a whole: it could no longer be recognised as one of the host's.
    """
    end = text[-_LONGEST_WORDS:]
    if len(text) > len(end):
        end = _FIRST_PATH.sub("", end)
    return _UNSPEAKABLE.sub("\N{REPLACEMENT CHARACTER}", end)


class Runtime(Protocol):
    """All calls are idempotent: starting a running container, stopping a stopped one, deleting a missing one
    succeed.

    Each raises `RuntimeFailure` when it cannot do its work, and the looks raise `Unobservable`. A call that
    returns has completed nothing by itself; only a later look tells.
    """

    @property
    def name(self) -> str: ...

    async def start(self, spec: WorkloadSpec) -> None:
        """Start the container on its existing home; a missing home is a failure, never created."""

    async def stop(self, workspace_id: str) -> None:
        """End every process of the container, politely first."""

    async def delete(self, workspace_id: str) -> None:
        """Stop the container and remove what the runtime keeps about it. The home is not touched."""

    async def upstream(self, workspace_id: str) -> str | None:
        """Where the gateway reaches the IDE: `unix:/path` or `tcp:host:port`."""

    async def status(self, workspace_id: str) -> ContainerFact: ...

    async def observe(self) -> Mapping[str, ContainerFact | Unknown]:
        """Every container there is, by workspace id. Missing here means missing in reality; one that cannot
        be looked at hides no other."""

    async def ping(self) -> None:
        """Raise `Unobservable` unless the runtime answers. Its cost does not grow with the containers."""

    async def logs(self, workspace_id: str, lines: int) -> str:
        """The container's recent output, the last `lines` lines of it."""

    async def close(self) -> None:
        """Release what this process holds of the runtime. Containers run on."""
