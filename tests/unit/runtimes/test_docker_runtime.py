"""Observation of all containers when the engine has trouble with one."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from ipaddress import IPv4Network
from pathlib import Path

import pytest
from aiohttp import web

from codehub.runtimes.base import RuntimeUnobservable
from codehub.runtimes.docker import runtime as docker_runtime
from codehub.runtimes.docker.runtime import DockerOptions, DockerRuntime
from tests.waiting import PATIENCE

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def hangs(_request: web.Request) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError


async def hangs_up(request: web.Request) -> web.StreamResponse:
    """Like an engine whose handler panics."""
    assert request.transport is not None
    request.transport.close()
    return web.Response()


async def reports_version(_request: web.Request) -> web.StreamResponse:
    return web.json_response({"ApiVersion": "1.41"})


async def lists_two(_request: web.Request) -> web.StreamResponse:
    return web.json_response([listed("w1", "exited"), listed("w2", "paused")])


def listed(workspace_id: str, state: str) -> dict[str, object]:
    labels = {"installation": "i", "workspace": workspace_id, "op-id": "op", "config": "c"}
    labels |= {"port": "1", "ready-path": "/"}
    return {
        "Id": workspace_id,
        "Names": [f"/codehub-ws-{workspace_id}"],
        "Labels": {f"codehub.{name}": value for name, value in labels.items()},
        "State": state,
        "HostConfig": {"NetworkMode": "n"},
        "NetworkSettings": {"Networks": {"n": {"IPAddress": ""}}},
    }


@asynccontextmanager
async def runtime_on(directory: Path, lists: Answer, inspects: Answer) -> AsyncIterator[DockerRuntime]:
    """Run a runtime on an engine with these handlers for lists and inspections."""
    app = web.Application()
    app.router.add_get("/version", reports_version)
    app.router.add_get("/{version}/containers/json", lists)
    app.router.add_get("/{version}/containers/{id}/json", inspects)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1)
    await runner.setup()
    await web.UnixSite(runner, str(directory / "engine")).start()
    options = DockerOptions(
        f"unix://{directory}/engine",
        directory,
        IPv4Network("10.222.0.0/16"),
        egress=None,
        executions=directory / "execs",
    )
    runtime = DockerRuntime("i", options)
    try:
        yield runtime
    finally:
        await runtime.close()
        await runner.cleanup()


@pytest.mark.parametrize("inspects", [hangs, hangs_up])
async def test_a_container_with_an_unknown_exit_status_does_not_hide_the_others(
    tmp_path: Path, inspects: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(docker_runtime, "_EXIT_MESSAGE_SECONDS", 0.1)
    async with runtime_on(tmp_path, lists_two, inspects) as runtime, asyncio.timeout(PATIENCE):
        facts = await runtime.observe()
    assert facts["w2"].running
    assert (facts["w1"].exists, facts["w1"].running) == (True, False)
    assert facts["w1"].message.startswith("its exit status is unknown: ")


async def test_an_engine_that_does_not_answer_is_unobservable(tmp_path: Path) -> None:
    async with runtime_on(tmp_path, hangs_up, hangs) as runtime:
        with pytest.raises(RuntimeUnobservable):
            await runtime.observe()
