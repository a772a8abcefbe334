"""Image pulls, from a registry that works, is broken, or does not have the image."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from codehub.domain.images import Image
from codehub.domain.observation import ContainerFact
from codehub.domain.states import ErrorReason
from codehub.runtimes.base import ABSENT, RuntimeFailure
from codehub.runtimes.docker import pull
from tests.docker.conftest import TINY_IMAGE, RuntimeFixture
from tests.docker.registry import Registry, running_registry
from tests.services import free_port
from tests.waiting import PATIENCE, eventually, until


@pytest.fixture
async def registry() -> AsyncIterator[Registry]:
    async with running_registry() as running:
        yield running


def tiny(reference: str) -> Image:
    return replace(TINY_IMAGE, docker=reference)


async def failure_of(fixture: RuntimeFixture, image: Image) -> RuntimeFailure:
    """Repeat the start, as the controller does, and return the failure."""
    spec = fixture.spec("w1", image=image)

    async def failed() -> RuntimeFailure | None:
        try:
            await fixture.runtime.start(spec)
        except RuntimeFailure as failure:
            return failure
        return None

    return await eventually(failed, "the pull to fail")


async def test_a_start_does_not_wait_for_the_pull_and_a_later_one_finds_the_image(
    fixture: RuntimeFixture, registry: Registry
) -> None:
    spec = fixture.spec("w1", image=tiny(registry.image("slow")))

    async def under_way() -> ContainerFact | None:
        fact = await fixture.runtime.status("w1")
        return fact if fact.progress is not None and fact.progress.bytes else None

    async with fixture.listening() as hints:
        # Returns although the layer is held until `may_continue`.
        await asyncio.wait_for(fixture.runtime.start(spec), PATIENCE)
        await asyncio.wait_for(registry.layer_requested.wait(), PATIENCE)
        await fixture.runtime.start(spec)
        fact = await eventually(under_way, "the engine to report progress")
        assert fact is not None and not fact.exists
        assert fact.message.startswith(f"Pulling the image {registry.image('slow')}")
        assert fact.progress is not None and fact.progress.total == registry.layer_bytes
        assert fact.progress.bytes < registry.layer_bytes * 2 / 3
        assert await fixture.runtime.observe() == {}
        registry.may_continue.set()
        await until(lambda: "w1" in hints, "a hint that the image is there")
    await fixture.runtime.start(spec)
    await fixture.ready("w1")


async def test_a_missing_image_is_reported_without_a_retry(
    fixture: RuntimeFixture, registry: Registry
) -> None:
    failure = await failure_of(fixture, tiny(registry.image("tiny", "missing")))
    assert failure.reason is ErrorReason.ImagePullFailed
    assert failure.message.startswith(f"There is no image {registry.image('tiny', 'missing')}")


async def test_a_broken_registry_is_not_a_missing_image(fixture: RuntimeFixture, registry: Registry) -> None:
    registry.broken = True
    failure = await failure_of(fixture, tiny(registry.image("tiny")))
    assert failure.reason is ErrorReason.ImagePullFailed
    assert failure.message.startswith(f"The registry of the image {registry.image('tiny')} does not work")


async def test_a_missing_registry_is_not_a_missing_image(fixture: RuntimeFixture) -> None:
    failure = await failure_of(fixture, tiny(f"127.0.0.1:{free_port()}/tiny:1"))
    assert failure.message.startswith("The registry of the image")
    assert "connection refused" in failure.message


async def test_after_a_failure_the_next_start_tries_again(
    fixture: RuntimeFixture, registry: Registry
) -> None:
    registry.broken = True
    image = tiny(registry.image("again"))
    await failure_of(fixture, image)
    registry.broken = False
    registry.may_continue.set()
    spec = fixture.spec("w1", image=image)

    async def ready() -> bool:
        await fixture.runtime.start(spec)
        return (await fixture.runtime.status("w1")).ready

    await eventually(ready, "the image to be pulled, and its container to be ready")


async def test_an_abandoned_pull_ends(
    fixture: RuntimeFixture, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fixture.runtime.start(fixture.spec("w1", image=tiny(registry.image("cancelled"))))
    await asyncio.wait_for(registry.layer_requested.wait(), PATIENCE)
    monkeypatch.setattr(pull, "KEEP_ALIVE_SECONDS", 0.2)
    await asyncio.wait_for(registry.layer_dropped.wait(), PATIENCE)
    assert await fixture.runtime.status("w1") == ABSENT


async def test_workspaces_share_a_pull_and_each_start_reports_its_failure(
    fixture: RuntimeFixture, registry: Registry
) -> None:
    image = tiny(registry.image("shared", "missing"))
    specs = [fixture.spec(name, image=image) for name in ("w1", "w2")]
    failed: set[str] = set()

    async def both_failed() -> bool:
        for spec in specs:
            try:
                if spec.workspace_id not in failed:
                    await fixture.runtime.start(spec)
            except RuntimeFailure:
                failed.add(spec.workspace_id)
        return len(failed) == 2

    await eventually(both_failed, "both starts to fail")
