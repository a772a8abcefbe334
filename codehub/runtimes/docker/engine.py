"""Client of the Docker Engine's API, with an exception for each kind of failure."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
from aiodocker import Docker, DockerError
from aiodocker.networks import DockerNetwork

from codehub.runtimes.docker.container_config import Label, name_of

_READ_SECONDS = 10.0
_CHANGE_SECONDS = 120.0
_CONNECT_SECONDS = 5.0
_NOT_FOUND = 404
_CONFLICT = 409
_NOT_MODIFIED = 304
_NO_CONNECTION = 900
"""The status that aiodocker uses for it."""


class EngineUnavailable(Exception):  # noqa: N818 - a fact, not a fault
    """Engine that does not answer, or answers with a server error."""


class EngineServerError(EngineUnavailable):
    """Server error (5xx) of the engine, or of a service that it called."""


class EngineRefusal(Exception):  # noqa: N818 - a fact, not a fault
    """Rejection of a request by the engine."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message

    @property
    def not_found(self) -> bool:
        return self.status == _NOT_FOUND


@dataclass(frozen=True)
class ContainerSummary:
    """A container of this installation, as the engine lists it."""

    id: str
    workspace_id: str
    op_id: str
    config: str
    state: str
    network: str
    upstream: str | None
    ready_path: str

    @property
    def is_running(self) -> bool:
        return self.state in ("running", "paused", "restarting")


@dataclass(frozen=True)
class ContainerExit:
    """How a container ended."""

    code: int
    oom_killed: bool
    error: str


@dataclass(frozen=True)
class NetworkSummary:
    """A network of the engine, as it lists it."""

    id: str
    name: str
    is_ours: bool
    subnets: tuple[str, ...]


class Engine:
    """Client of one Docker Engine, for the containers and networks of one installation."""

    def __init__(self, url: str, installation_id: str) -> None:
        self._url = url
        self._installation = f"{Label.INSTALLATION}={installation_id}"
        self._docker: Docker | None = None

    async def close(self) -> None:
        if self._docker is not None:
            await self._docker.close()
            self._docker = None

    async def info(self) -> Mapping[str, Any]:
        """Return what `docker info` shows."""
        async with self._request(_READ_SECONDS) as docker:
            info: Mapping[str, Any] = await docker.system.info()
            return info

    async def ping(self) -> None:
        async with self._request(_READ_SECONDS) as docker:
            await docker.version()

    async def containers(self, workspace_id: str | None = None) -> list[ContainerSummary]:
        """Return the containers of this installation, or of one workspace, with one request."""
        async with self._request(_READ_SECONDS) as docker:
            listed = await docker.containers.list(all=True, filters=self._filters(workspace_id))
            return [_summary(entry._container) for entry in listed if _is_ours(entry._container)]

    async def create(self, name: str, config: Mapping[str, Any]) -> str:
        async with self._request(_CHANGE_SECONDS) as docker:
            return (await docker.containers.create(dict(config), name=name)).id

    async def rename(self, container_id: str, name: str) -> None:
        async with self._request(_CHANGE_SECONDS) as docker:
            await docker.containers.container(container_id).rename(name)

    async def start(self, container_id: str) -> None:
        async with self._request(_CHANGE_SECONDS) as docker:
            await docker.containers.container(container_id).start()

    async def stop(self, container_id: str, grace: float) -> None:
        async with self._request(_CHANGE_SECONDS + grace) as docker:
            with _ignore_missing():
                await docker.containers.container(container_id).stop(t=round(grace))

    async def remove(self, container_id: str) -> None:
        async with self._request(_CHANGE_SECONDS) as docker:
            with _ignore_missing():
                await docker.containers.container(container_id).delete(force=True, v=True)

    async def exit_of(self, container_id: str) -> ContainerExit:
        async with self._request(_READ_SECONDS) as docker:
            state = (await docker.containers.container(container_id).show())["State"]
            return ContainerExit(int(state["ExitCode"]), bool(state["OOMKilled"]), str(state["Error"]))

    async def stats(self, container_id: str, seconds: float) -> object:
        """Return what `docker stats` shows, as the engine reports it, without waiting for a second value."""
        async with self._request(seconds) as docker:
            params = {"stream": "false", "one-shot": "true"}
            return await docker._query_json(f"containers/{container_id}/stats", params=params)

    async def inspect(self, container_id: str, seconds: float) -> object:
        """Return what `docker inspect` shows."""
        async with self._request(seconds) as docker:
            return await docker._query_json(f"containers/{container_id}/json")

    async def output(self, container_id: str, lines: int) -> str:
        async with self._request(_READ_SECONDS) as docker:
            container = docker.containers.container(container_id)
            return "".join(await container.log(stdout=True, stderr=True, tail=lines))

    async def networks(self) -> list[NetworkSummary]:
        """Return all networks, since the subnet of any network is taken."""
        async with self._request(_READ_SECONDS) as docker:
            return [self._network(entry) for entry in await docker.networks.list()]

    async def is_unused_network(self, name: str) -> bool:
        """Return whether the network exists and has no containers."""
        try:
            async with self._request(_READ_SECONDS) as docker:
                return not (await DockerNetwork(docker, name).show())["Containers"]  # type: ignore[no-untyped-call]
        except EngineRefusal as refusal:
            if refusal.not_found:
                return False
            raise

    async def create_network(self, config: Mapping[str, Any]) -> None:
        async with self._request(_CHANGE_SECONDS) as docker:
            await docker.networks.create(dict(config))

    async def remove_network(self, name: str) -> None:
        async with self._request(_CHANGE_SECONDS) as docker:
            with _ignore_missing():
                await DockerNetwork(docker, name).delete()  # type: ignore[no-untyped-call]

    async def has_image(self, reference: str) -> bool:
        try:
            async with self._request(_READ_SECONDS) as docker:
                await docker.images.inspect(reference)
        except EngineRefusal as refusal:
            if refusal.not_found:
                return False
            raise
        return True

    async def pull(self, reference: str) -> AsyncGenerator[Mapping[str, Any], None]:
        """Pull an image; yield the engine's progress reports.

        They may end early, so check for the image afterwards. Closing the generator cancels the
        pull.
        """
        tagged = "@" in reference or ":" in reference.rpartition("/")[2]
        params = {"fromImage": reference if tagged else f"{reference}:latest"}
        async with aclosing(self._stream("POST", "images/create", params)) as reports:
            async for report in reports:
                if report is None:
                    continue
                if "error" in report:
                    raise EngineRefusal(0, str(report["error"]))
                yield report

    async def events(self) -> AsyncGenerator[str | None, None]:
        """Yield None once events arrive, then the workspace of each container with an event."""
        kinds = ["start", "die", "oom", "destroy", "pause", "unpause"]
        filters = {"type": ["container"], "label": [self._installation], "event": kinds}
        async with aclosing(self._stream("GET", "events", {"filters": json.dumps(filters)})) as events:
            async for event in events:
                yield None if event is None else str(event["Actor"]["Attributes"][Label.WORKSPACE])

    async def _stream(
        self, method: str, path: str, params: Mapping[str, str]
    ) -> AsyncGenerator[Mapping[str, Any] | None, None]:
        """Yield None once the engine has answered, then one object for each line.

        aiodocker's own streams keep the connection when they are cancelled, so the engine would
        continue.
        """
        unlimited = aiohttp.ClientTimeout(total=None, connect=_CONNECT_SECONDS)
        async with (
            self._request(None) as docker,
            docker._query(path, method, params=dict(params), timeout=unlimited) as response,
        ):
            try:
                yield None
                async for line in response.content:
                    yield json.loads(line)
            finally:
                response.close()

    def _network(self, entry: Mapping[str, Any]) -> NetworkSummary:
        configs = (entry.get("IPAM") or {}).get("Config") or []
        subnets = tuple(config["Subnet"] for config in configs if config.get("Subnet"))
        label, _, own = self._installation.partition("=")
        is_ours = (entry.get("Labels") or {}).get(label) == own
        return NetworkSummary(entry["Id"], entry["Name"], is_ours, subnets)

    def _filters(self, workspace_id: str | None) -> str:
        labels = [self._installation]
        if workspace_id is not None:
            labels.append(f"{Label.WORKSPACE}={workspace_id}")
        return json.dumps({"label": labels})

    @asynccontextmanager
    async def _request(self, seconds: float | None) -> AsyncIterator[Docker]:
        try:
            async with asyncio.timeout(seconds):
                yield self._client()
        except TimeoutError as error:
            raise EngineUnavailable(f"the Docker engine at {self._url} did not answer in time") from error
        except DockerError as error:
            if error.status == _NO_CONNECTION:
                why = getattr(error.__context__, "strerror", None) or "the connection broke"
                raise EngineUnavailable(
                    f"the Docker engine at {self._url} does not answer ({why})"
                ) from error
            if error.status >= 500:
                raise EngineServerError(
                    f"the Docker engine at {self._url}: {error.message.strip()}"
                ) from error
            raise EngineRefusal(error.status, error.message.strip()) from error
        except (aiohttp.ClientError, OSError) as error:
            raise EngineUnavailable(f"the Docker engine at {self._url} does not answer ({error})") from error

    def _client(self) -> Docker:
        if self._docker is None:
            timeout = aiohttp.ClientTimeout(total=None, connect=_CONNECT_SECONDS)
            self._docker = Docker(self._url, timeout=timeout)
        return self._docker


@contextmanager
def _ignore_missing() -> Iterator[None]:
    """Ignore errors about containers that are missing, stopped, or being removed."""
    try:
        yield
    except DockerError as error:
        if error.status not in (_NOT_FOUND, _NOT_MODIFIED) and not _is_being_removed(error):
            raise


def _is_being_removed(error: DockerError) -> bool:
    return error.status == _CONFLICT and "already in progress" in error.message


def _is_ours(listed: Mapping[str, Any]) -> bool:
    """Return whether name and labels are those of one of our containers.

    The labels are not enough: an image that was committed from a workspace passes them on to its
    containers.
    """
    return f"/{name_of(listed['Labels'].get(Label.WORKSPACE, ''))}" in listed["Names"]


def _summary(listed: Mapping[str, Any]) -> ContainerSummary:
    labels = listed["Labels"]
    network = listed["HostConfig"]["NetworkMode"]
    address = listed["NetworkSettings"]["Networks"].get(network, {}).get("IPAddress")
    return ContainerSummary(
        id=listed["Id"],
        workspace_id=labels[Label.WORKSPACE],
        op_id=labels[Label.OP_ID],
        config=labels[Label.CONFIG],
        state=listed["State"],
        network=network,
        upstream=f"tcp:{address}:{labels[Label.PORT]}" if address else None,
        ready_path=labels[Label.READY_PATH],
    )
