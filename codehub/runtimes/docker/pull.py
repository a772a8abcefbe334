"""Image pulls that run beside the controller: a start asks, goes away, and asks again.

A pull lives as long as some workspace keeps asking for it, so that a cancelled start ends its pull as well.
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
"""Longer than any pause between two looks at a workspace that is being started."""

RETRY_PAUSES = (2.0, 8.0)
_MAX_LOSSES = 3
_LOOK_EVERY_SECONDS = 1.0
_NO_SUCH_IMAGE = (
    "not found", "manifest unknown", "access denied", "does not exist", "unauthorized", "name unknown",
    "no matching manifest", "invalid reference format",
)  # fmt: skip


@dataclass
class LayerProgress:
    """How far a pull is, from the engine's reports about each layer."""

    _now: dict[str, int] = field(default_factory=dict)
    _total: dict[str, int] = field(default_factory=dict)

    def note(self, report: Mapping[str, Any]) -> None:
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
    asked: dict[str, float] = field(default_factory=dict)
    trouble: str = ""

    @property
    def is_forgotten(self) -> bool:
        return max(self.asked.values()) < time.monotonic() - KEEP_ALIVE_SECONDS

    @property
    def words(self) -> str:
        progress = self.layers.progress
        sizes = f": {progress.bytes >> 20} of {progress.total >> 20} MiB" if progress.total else ""
        return f"Pulling the image {self.reference}{sizes}{self.trouble}"


class ImagePulls:
    def __init__(
        self, engine: Engine, done: Callable[[str], None], pauses: Sequence[float] = RETRY_PAUSES
    ) -> None:
        self._engine = engine
        self._done = done
        self._pauses = pauses
        self._pulls: dict[str, _Pull] = {}
        self._failures: dict[tuple[str, str], tuple[float, RuntimeFailure]] = {}
        self._losses: dict[str, int] = {}
        """How many pulls of an image in a row have ended with the engine."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def is_here(self, reference: str, workspace_id: str) -> bool:
        """Whether the image is on the engine; where it is not, see to it, or raise why that failed."""
        failed_at, failure = self._failures.pop((reference, workspace_id), (0.0, None))
        if failure is not None and time.monotonic() - failed_at < KEEP_ALIVE_SECONDS:
            raise failure
        pull = self._pulls.get(reference)
        if pull is None:
            if await self._engine.has_image(reference):
                return True
            pull = self._pulls.setdefault(reference, _Pull(reference))
            if not pull.asked:
                self._begin(pull)
        pull.asked[workspace_id] = time.monotonic()
        return False

    def of(self, workspace_id: str) -> tuple[str, Progress] | None:
        """What is being pulled for a workspace, in words and in bytes."""
        for pull in self._pulls.values():
            if workspace_id in pull.asked:
                return pull.words, pull.layers.progress
        return None

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _begin(self, pull: _Pull) -> None:
        task = asyncio.create_task(self._see_through(pull))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _see_through(self, pull: _Pull) -> None:
        work = asyncio.create_task(self._pull(pull))
        try:
            while not work.done() and not (pull.asked and pull.is_forgotten):
                await asyncio.wait({work}, timeout=_LOOK_EVERY_SECONDS)
        finally:
            work.cancel()
            outcome = (await asyncio.gather(work, return_exceptions=True))[0]
            del self._pulls[pull.reference]
        losses = self._losses.pop(pull.reference, 0)
        if isinstance(outcome, EngineUnavailable):
            self._losses[pull.reference] = losses + 1
            outcome = _lost(pull.reference, outcome) if losses + 1 >= _MAX_LOSSES else None
        if isinstance(outcome, RuntimeFailure):
            for workspace_id in pull.asked:
                self._failures[pull.reference, workspace_id] = (time.monotonic(), outcome)
        elif isinstance(outcome, Exception):
            raise outcome
        for workspace_id in pull.asked:
            self._done(workspace_id)

    async def _pull(self, pull: _Pull) -> None:
        """Passing troubles are tried again; what will not change by waiting is told at once.

        An engine that is gone says nothing about its image: whoever starts next asks it again. One that goes
        away by every pull has to be told of, though.
        """
        trouble = ""
        for pause in (*self._pauses, None):
            try:
                async with aclosing(self._engine.pull(pull.reference)) as reports:
                    async for report in reports:
                        pull.layers.note(report)
                if await self._engine.has_image(pull.reference):
                    return
                trouble = "the pull was broken off"
            except (EngineUnavailable, EngineRefusal) as error:
                trouble = str(error)
                if (isinstance(error, EngineRefusal) and error.not_found) or _is_missing(trouble):
                    raise _missing(pull.reference, trouble) from error
                if pause is None and not isinstance(error, EngineServerError | EngineRefusal):
                    raise
            if pause is not None:
                pull.trouble = f" (tried again after: {trouble})"
                await asyncio.sleep(pause)
        raise RuntimeFailure(
            ErrorReason.ImagePullFailed,
            f"The registry of the image {pull.reference} does not answer as it should ({trouble}). "
            "When it does again, recover the workspace.",
        )


def _lost(reference: str, trouble: EngineUnavailable) -> RuntimeFailure:
    return RuntimeFailure(
        ErrorReason.Unreachable,
        f"The engine breaks off the pull of the image {reference} again and again ({trouble}). "
        "Its own log tells why.",
    )


def _is_missing(trouble: str) -> bool:
    return any(sign in trouble.lower() for sign in _NO_SUCH_IMAGE)


def _missing(reference: str, trouble: str) -> RuntimeFailure:
    return RuntimeFailure(
        ErrorReason.ImagePullFailed,
        f"There is no image {reference}, or it may not be read ({trouble}). "
        "Correct its name in IMAGES_FILE, or bring it to the engine with `docker pull` or `make image`.",
    )
