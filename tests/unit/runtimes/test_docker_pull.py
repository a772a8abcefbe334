"""Progress of a pull, and how it ends."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import pytest

from codehub.domain.observation import Progress
from codehub.domain.states import ErrorReason
from codehub.runtimes.base import RuntimeFailure
from codehub.runtimes.docker.engine import Engine, EngineServerError, EngineUnavailable
from codehub.runtimes.docker.pull import ImagePulls, LayerProgress
from tests.waiting import PATIENCE


class FailingEngine(Engine):
    """Engine that never has the image, and whose pulls end with the same error."""

    def __init__(self, error: Exception) -> None:
        super().__init__("unix:///nowhere", "installation")
        self._error = error
        self.pulls = 0

    async def has_image(self, reference: str) -> bool:
        return False

    async def pull(self, reference: str) -> AsyncGenerator[Mapping[str, Any], None]:
        self.pulls += 1
        yield {"status": "Downloading", "progressDetail": {"current": 1, "total": 9}, "id": "a"}
        raise self._error


async def pulled(engine: Engine) -> ImagePulls:
    """Return pulls after the first one has ended."""
    ended = asyncio.Event()
    pulls = ImagePulls(engine, lambda _workspace_id: ended.set(), pauses=(0.0, 0.0))
    assert not await pulls.ensure("image:1", "w1")
    async with asyncio.timeout(PATIENCE):
        await ended.wait()
    return pulls


async def test_the_next_start_retries_a_pull_that_lost_its_engine() -> None:
    engine = FailingEngine(EngineUnavailable("the Docker engine does not answer (Connection refused)"))
    pulls = await pulled(engine)
    assert engine.pulls == 3
    assert not await pulls.ensure("image:1", "w1")
    assert pulls.status_of("w1") is not None
    await pulls.close()


async def test_an_engine_that_goes_away_at_every_pull_fails_the_start() -> None:
    engine = FailingEngine(EngineUnavailable("the Docker engine does not answer (Connection reset)"))
    pulls = await pulled(engine)
    attempts = 0
    with pytest.raises(RuntimeFailure, match="interrupting the pull of the image image:1") as failure:
        while attempts < 1000:
            attempts += not await pulls.ensure("image:1", "w1")
            await asyncio.sleep(0)
    assert failure.value.reason is ErrorReason.Unreachable
    assert engine.pulls == 9
    await pulls.close()


async def test_an_error_of_the_registry_fails_the_pull() -> None:
    pulls = await pulled(FailingEngine(EngineServerError("the Docker engine: connection refused")))
    with pytest.raises(RuntimeFailure, match="The registry of the image image:1") as failure:
        await pulls.ensure("image:1", "w1")
    assert failure.value.reason is ErrorReason.ImagePullFailed


def test_progress_adds_up_over_the_layers() -> None:
    layers = LayerProgress()
    assert layers.progress == Progress(0, None)
    layers.update({"status": "Pulling fs layer", "progressDetail": {}, "id": "a"})
    layers.update({"status": "Downloading", "progressDetail": {"current": 10, "total": 100}, "id": "a"})
    layers.update({"status": "Downloading", "progressDetail": {"current": 5, "total": 50}, "id": "b"})
    assert layers.progress == Progress(15, 150)
    layers.update({"status": "Download complete", "progressDetail": {}, "id": "a"})
    layers.update({"status": "Extracting", "progressDetail": {"current": 3, "total": 100}, "id": "a"})
    assert layers.progress == Progress(105, 150)
    layers.update({"status": "Already exists", "progressDetail": {}, "id": "c"})
    layers.update({"status": "Digest: sha256:1234"})
    assert layers.progress == Progress(105, 150)
