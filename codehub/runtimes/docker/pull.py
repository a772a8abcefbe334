"""Image pulls in the background (ADR 0010): a start requests one, returns, and tries again later.

A pull runs as long as a workspace keeps requesting it, so that a cancelled start ends its pull as
well.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from codehub.domain.observation import Progress
from codehub.domain.states import ErrorReason
from codehub.runtimes.base import RuntimeFailure
from codehub.runtimes.docker.engine import Engine, EngineRefusal, EngineServerError, EngineUnavailable

KEEP_ALIVE_SECONDS = 60.0
"""Longer than any pause between two attempts to start a workspace."""

RETRY_PAUSES = (2.0, 8.0)
_MAX_INTERRUPTIONS = 3
_POLL_SECONDS = 1.0
_NO_SUCH_IMAGE = (
    "not found", "manifest unknown", "access denied", "does not exist", "unauthorized", "name unknown",
    "no matching manifest", "invalid reference format",
)  # fmt: skip


@dataclass
class LayerProgress:
    """Progress of a pull, from the engine's reports about each layer."""

    _now: dict[str, int] = field(default_factory=dict)
    _total: dict[str, int] = field(default_factory=dict)

    def update(self, report: Mapping[str, Any]) -> None:
        layer, status = str(report.get("id", "")), report.get("status")
        detail = report.get("progressDetail") or {}
        if status == "Downloading" and "current" in detail:
            self._now[layer] = int(detail["current"])
            self._total[layer] = int(detail.get("total") or 0)
        elif status in ("Download complete", "Pull complete"):
            self._now[layer] = self._total.get(layer, 0)

    @property
    def progress(self) -> Progress:
        return Progress(sum(self._now.values()), sum(self._total.values()) or None)


@dataclass
class _Pull:
    reference: str
    layers: LayerProgress = field(default_factory=LayerProgress)
    requested_at: dict[str, float] = field(default_factory=dict)
    last_error: str = ""

    @property
    def is_abandoned(self) -> bool:
        return max(self.requested_at.values()) < time.monotonic() - KEEP_ALIVE_SECONDS

    @property
    def message(self) -> str:
        progress = self.layers.progress
        sizes = f": {progress.bytes >> 20} of {progress.total >> 20} MiB" if progress.total else ""
        return f"Pulling the image {self.reference}{sizes}{self.last_error}"


class ImagePulls:
    """The pulls in progress, and the failures that starts have yet to report."""

    def __init__(
        self, engine: Engine, done: Callable[[str], None], pauses: Sequence[float] = RETRY_PAUSES
    ) -> None:
        self._engine = engine
        self._done = done
        self._pauses = pauses
        self._pulls: dict[str, _Pull] = {}
        self._failures: dict[tuple[str, str], tuple[float, RuntimeFailure]] = {}
        self._interruptions: dict[str, int] = {}
        """How many pulls of an image in a row ended because the engine went away."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def ensure(self, reference: str, workspace_id: str) -> bool:
        """Return whether the engine has the image.

        If not, pull it, or raise the failure of the last pull.
        """
        failed_at, failure = self._failures.pop((reference, workspace_id), (0.0, None))
        if failure is not None and time.monotonic() - failed_at < KEEP_ALIVE_SECONDS:
            raise failure
        pull = self._pulls.get(reference)
        if pull is None:
            if await self._engine.has_image(reference):
                return True
            pull = self._pulls.setdefault(reference, _Pull(reference))
            if not pull.requested_at:
                self._start(pull)
        pull.requested_at[workspace_id] = time.monotonic()
        return False

    def status_of(self, workspace_id: str) -> tuple[str, Progress] | None:
        """Return message and progress of the pull for a workspace, or None."""
        for pull in self._pulls.values():
            if workspace_id in pull.requested_at:
                return pull.message, pull.layers.progress
        return None

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start(self, pull: _Pull) -> None:
        task = asyncio.create_task(self._supervise(pull))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _supervise(self, pull: _Pull) -> None:
        work = asyncio.create_task(self._pull(pull))
        try:
            while not work.done() and not (pull.requested_at and pull.is_abandoned):
                await asyncio.wait({work}, timeout=_POLL_SECONDS)
        finally:
            work.cancel()
            outcome = (await asyncio.gather(work, return_exceptions=True))[0]
            del self._pulls[pull.reference]
        interruptions = self._interruptions.pop(pull.reference, 0)
        if isinstance(outcome, EngineUnavailable):
            self._interruptions[pull.reference] = interruptions + 1
            outcome = (
                _interrupted(pull.reference, outcome) if interruptions + 1 >= _MAX_INTERRUPTIONS else None
            )
        if isinstance(outcome, RuntimeFailure):
            for workspace_id in pull.requested_at:
                self._failures[pull.reference, workspace_id] = (time.monotonic(), outcome)
        elif isinstance(outcome, Exception):
            raise outcome
        for workspace_id in pull.requested_at:
            self._done(workspace_id)

    async def _pull(self, pull: _Pull) -> None:
        """Pull the image. Retry transient errors, and raise permanent ones at once.

        If the connection to the engine breaks, the next start retries. `_supervise` reports an engine
        that breaks every pull.
        """
        error_text = ""
        for pause in (*self._pauses, None):
            try:
                async with aclosing(self._engine.pull(pull.reference)) as reports:
                    async for report in reports:
                        pull.layers.update(report)
                if await self._engine.has_image(pull.reference):
                    return
                error_text = "the pull was interrupted"
            except (EngineUnavailable, EngineRefusal) as error:
                error_text = str(error)
                if (isinstance(error, EngineRefusal) and error.not_found) or _is_missing(error_text):
                    raise _missing(pull.reference, error_text) from error
                if pause is None and not isinstance(error, EngineServerError | EngineRefusal):
                    raise
            if pause is not None:
                pull.last_error = f" (retrying after: {error_text})"
                await asyncio.sleep(pause)
        raise RuntimeFailure(
            ErrorReason.ImagePullFailed,
            f"The registry of the image {pull.reference} does not work ({error_text}). "
            "Once it works again, recover the workspace.",
        )


def _interrupted(reference: str, error: EngineUnavailable) -> RuntimeFailure:
    return RuntimeFailure(
        ErrorReason.Unreachable,
        f"The Docker engine keeps interrupting the pull of the image {reference} ({error}). "
        "See the engine's log for the cause.",
    )


def _is_missing(error: str) -> bool:
    return any(text in error.lower() for text in _NO_SUCH_IMAGE)


def _missing(reference: str, error: str) -> RuntimeFailure:
    return RuntimeFailure(
        ErrorReason.ImagePullFailed,
        f"There is no image {reference}, or it cannot be read ({error}). "
        "Correct its name in IMAGES_FILE, or load it with `docker pull` or `make image`.",
    )
