"""The protocol that every runtime implements, and the types that it uses."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from codehub.domain.images import Image
from codehub.domain.observation import ContainerFact, Unknown
from codehub.domain.resource_usage import ResourceUsage
from codehub.domain.states import ErrorReason

ABSENT = ContainerFact(exists=False, running=False, ready=False, upstream=None, op_id=None)

_LONGEST_EXCERPT = 2000
_FIRST_PATH = re.compile(r"\A[^\s/]*/\S*\s*")
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


@dataclass(frozen=True)
class WorkloadSpec:
    """One container to start, for the operation `op_id`. Under root it runs as `uid`.

    `name` is the workspace's, as its owner typed it. If it is empty, the id takes its place.
    """

    workspace_id: str
    image: Image
    home: Path
    op_id: str
    uid: int | None
    name: str = ""


class RuntimeFailure(Exception):  # noqa: N818 - a fact, not a fault
    """Failure of the runtime to carry out a request."""

    def __init__(self, reason: ErrorReason, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


class RuntimeUnobservable(Exception):  # noqa: N818 - a fact, not a fault
    """Failure of the runtime to observe its containers.

    The last observation still stands: no container may be taken for deleted.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


def output_excerpt(text: str) -> str:
    """Return the end of a workspace's output, fit for a message.

    PostgreSQL rejects NULs. A path that would be cut is left out: it could not be recognised any
    longer as a path of the host, which messages must not show.
    """
    end = text[-_LONGEST_EXCERPT:]
    if len(text) > len(end):
        end = _FIRST_PATH.sub("", end)
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", end)


class Runtime(Protocol):
    """Interface to a container runtime.

    All calls are idempotent: starting a running container, stopping a stopped one and deleting a
    missing one succeed. Calls that change something raise `RuntimeFailure`, and calls that observe
    raise `RuntimeUnobservable`. Only a later observation shows whether a change has taken effect.
    """

    @property
    def name(self) -> str: ...

    async def start(self, spec: WorkloadSpec) -> None:
        """Start the container on its existing home.

        A missing home is a failure; it is never created.
        """

    async def stop(self, workspace_id: str) -> None:
        """End every process: first with SIGTERM, after a grace period with SIGKILL."""

    async def delete(self, workspace_id: str) -> None:
        """Stop the container and remove what the runtime keeps about it, but not the home."""

    async def upstream(self, workspace_id: str) -> str | None:
        """Return the address of the IDE: `unix:/path` or `tcp:host:port`."""

    async def status(self, workspace_id: str) -> ContainerFact: ...

    async def observe(self) -> Mapping[str, ContainerFact | Unknown]:
        """Return every container by workspace id, `Unknown` for one that cannot be observed.

        A container that is missing from the result does not exist.
        """

    async def ping(self) -> None:
        """Raise `RuntimeUnobservable` unless the runtime answers.

        The cost does not depend on the number of containers.
        """

    async def logs(self, workspace_id: str, lines: int) -> str:
        """Return the last `lines` lines of the container's output."""

    async def resource_usage(
        self, workspace_ids: Sequence[str], within: float
    ) -> Mapping[str, ResourceUsage | Unknown]:
        """Measure these containers in this order, as many as possible within so many seconds.

        A container that does not run, or for which there was no time, is left out. What a runtime
        cannot measure is `Unknown`, with a sentence for the workspace's owner.
        """

    async def close(self) -> None:
        """Release the resources that this process holds. Containers keep running."""
