"""Fixtures on a real Docker Engine."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from ipaddress import IPv4Network
from pathlib import Path

import pytest

from codehub.domain.images import Image
from codehub.domain.observation import ContainerFact
from codehub.runtimes.base import WorkloadSpec
from codehub.runtimes.docker.container_config import Label
from codehub.runtimes.docker.runtime import DockerOptions, DockerRuntime
from codehub.runtimes.egress import Egress
from tests.docker.engine import TINY, EngineMissingError, OwnEngine
from tests.docker.system import DockerSystem, on_engine, write_images
from tests.waiting import eventually, until

POOL = IPv4Network("10.222.0.0/16")
TINY_IMAGE = Image(
    name="tiny", title="Tiny", docker=TINY, process=None, ready_path="/healthz", port=8080, cpus=0.5,
    memory_bytes=64 << 20, pids=64, activity="any", default=True,
)  # fmt: skip
_numbers = itertools.count(1)
HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run all tests on the engine in one process: they share networks and packet filter."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.xdist_group("docker"))


@pytest.fixture(scope="session")
def own_engine() -> Iterator[OwnEngine]:
    try:
        engine = OwnEngine()
    except EngineMissingError as missing:
        pytest.skip(str(missing))
    try:
        engine.start()
        engine.import_tiny()
        yield engine
    except EngineMissingError as missing:
        pytest.skip(str(missing))
    finally:
        engine.close()


@pytest.fixture
def engine(own_engine: OwnEngine) -> Iterator[OwnEngine]:
    """The engine, with nothing on it but the image."""
    yield own_engine
    own_engine.clear()


@pytest.fixture
def make_docker_system(engine: OwnEngine, tmp_path: Path) -> Iterator[Callable[..., DockerSystem]]:
    """Make whole systems on the engine, with the tiny image, and remove them afterwards."""
    made: list[DockerSystem] = []

    def make(**environment: str) -> DockerSystem:
        made.append(on_engine(engine, **{"IMAGES_FILE": write_images(tmp_path)} | environment))
        return made[-1]

    yield make
    for system in made:
        system.close()


@pytest.fixture
def system(make_docker_system: Callable[..., DockerSystem]) -> DockerSystem:
    # Each container that a test kills counts as a failure.
    return make_docker_system(RECONCILER_MAX_RETRIES="10")


@dataclass
class RuntimeFixture:
    """A runtime on the engine, with homes."""

    engine: OwnEngine
    homes: Path
    runtime: DockerRuntime
    installation_id: str

    def spec(self, workspace_id: str, attempt: str = "op-0", image: Image = TINY_IMAGE) -> WorkloadSpec:
        home = self.homes / workspace_id
        home.mkdir(exist_ok=True)
        return WorkloadSpec(workspace_id, image, home, attempt, 2_000_000 + next(_numbers))

    def other_runtime(self, installation_id: str | None = None, **options: object) -> DockerRuntime:
        chosen = replace(make_options(self.engine, self.homes), **options)  # type: ignore[arg-type]
        return DockerRuntime(installation_id or self.installation_id, chosen)

    async def ready(self, workspace_id: str) -> ContainerFact:
        async def is_ready() -> ContainerFact | None:
            fact = await self.runtime.status(workspace_id)
            return fact if fact.ready else None

        return await eventually(is_ready, f"{workspace_id} to be ready")

    async def started(self, workspace_id: str, **spec: object) -> ContainerFact:
        await self.runtime.start(self.spec(workspace_id, **spec))  # type: ignore[arg-type]
        return await self.ready(workspace_id)

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[list[str]]:
        """Run `hints`, and yield the list of hints, which grows. `all` stands for a resync.

        The listener also creates spare networks. The engine finishes creating one even after a
        cancellation, so end the listener only when none is being created: it would turn up in the
        next test.
        """
        hints: list[str] = []
        listener = asyncio.create_task(self.runtime.hints(hints.append, lambda: hints.append("all")))
        try:
            yield hints
        finally:
            await until(lambda: not self.runtime._networks._being_created, "every network to be created")
            listener.cancel()
            await asyncio.gather(listener, return_exceptions=True)

    def containers(self) -> list[str]:
        return self.engine.docker("ps", "--all", "--format", "{{.Names}}").split()

    def networks(self) -> list[str]:
        """Return the networks of this installation."""
        ours = f"label={Label.INSTALLATION}={self.installation_id}"
        return self.engine.docker("network", "ls", "--filter", ours, "--format", "{{.Name}}").split()


def make_options(engine: OwnEngine, root: Path) -> DockerOptions:
    return DockerOptions(
        engine.url, root / ".docker", POOL, Egress(8080), root / "execs", stop_grace=1, pull_pauses=(0.1, 0.1)
    )


@pytest.fixture
async def fixture(engine: OwnEngine, tmp_path: Path) -> AsyncIterator[RuntimeFixture]:
    tmp_path.chmod(0o711)
    installation_id = f"installation-{next(_numbers)}"
    runtime = DockerRuntime(installation_id, make_options(engine, tmp_path))
    yield RuntimeFixture(engine, tmp_path, runtime, installation_id)
    await runtime.close()
