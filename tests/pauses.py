"""Random pauses around calls that leave the event loop, to find races: `CODEHUB_PAUSES=1`.

A pause lets every other task and process overtake the one that waits, as a slow disk or network
would. It happens around `asyncio.to_thread` and around requests to PostgreSQL, Redis and the Docker
Engine. It is an `asyncio.sleep`, so it never holds a thread, and only the event loops of asyncio
and uvloop have it: simulated time stays as the simulation decides.

Every Python process that pytest starts pauses, too. It finds this file as `sitecustomize` on
PYTHONPATH. Some processes have no pauses, because CodeHub replaces their PYTHONPATH (storage jobs,
see `LocalJobs`) or starts them with `-S` (keepers). They have no event loop anyway.

The sequence of pauses follows from a seed and the process's name, so `CODEHUB_PAUSES_SEED` repeats
a run as far as the machine's timing allows. This module imports next to nothing, because every
process loads it.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

    import pytest

SWITCH = "CODEHUB_PAUSES"
SEED = "CODEHUB_PAUSES_SEED"
PROBABILITIES = (0.1, 0.3)
"""Each process draws its own, so that some are slower than others."""
LONGEST = 0.4
"""Seconds."""
REAL_LOOPS = ("asyncio", "uvloop")
PAUSED = {
    "asyncio": ("to_thread",),
    "asyncpg.connection": (
        *(f"Connection.{name}" for name in ("execute", "executemany", "prepare")),
        *(f"Connection.{name}" for name in ("fetch", "fetchrow", "fetchval", "fetchmany")),
    ),
    "asyncpg.prepared_stmt": tuple(
        f"PreparedStatement.{name}" for name in ("executemany", "fetch", "fetchrow", "fetchval", "fetchmany")
    ),
    "redis.asyncio.client": ("Redis.execute_command", "PubSub.execute_command", "Pipeline.execute"),
    "aiodocker.docker": ("Docker._do_query", "Docker._websocket"),
}
"""Module -> its functions that have pauses.

Transactions of asyncpg begin and end by `Connection.execute`.
"""


def install(seed: str, probability: float | None = None) -> None:
    """Add pauses to this process and to those that it forks; a second call changes nothing."""
    if any(type(finder).__name__ == PauseFinder.__name__ for finder in sys.meta_path):
        return  # this file may be imported under two names
    pauses = Pauses(seed, probability)
    os.register_at_fork(before=pauses.count_fork, after_in_child=pauses.begin_in_fork)
    sys.meta_path.insert(0, PauseFinder(pauses))
    for name in PAUSED:
        if name in sys.modules:
            pauses.add_to(sys.modules[name])


def process_name() -> str:
    """Return the command line without paths and numbers, which is the same in every run."""
    words = [word for word in sys.orig_argv[1:] if "/" not in word and not word.isdigit()]
    return " ".join([*words, os.environ.get("PYTEST_XDIST_WORKER", "")])


class Pauses:
    """The random pauses of one process."""

    def __init__(self, seed: str, probability: float | None = None) -> None:
        self._seed = seed
        self._given_probability = probability
        self._ancestry = ""
        self._forks = 0
        self._random: random.Random | None = None
        self._probability = 0.0

    def count_fork(self) -> None:
        self._forks += 1

    def begin_in_fork(self) -> None:
        """Leave the parent's sequence: forks of one parent must not pause alike."""
        self._ancestry += f" fork {self._forks}"
        self._forks = 0
        self._random = None

    def draw(self) -> float:
        """Return how many seconds to pause now, mostly 0."""
        if self._random is None:
            self._random = self._begin()
        if self._random.random() >= self._probability:
            return 0.0
        return self._random.uniform(0.0, LONGEST)

    def add_to(self, module: ModuleType) -> None:
        for path in PAUSED[module.__name__]:
            owner: Any = module
            *parents, name = path.split(".")
            for parent in parents:
                owner = getattr(owner, parent)
            setattr(owner, name, self._around(getattr(owner, name)))

    def _begin(self) -> random.Random:
        import random

        begun = random.Random(f"{self._seed} {process_name()}{self._ancestry}")
        drawn = begun.uniform(*PROBABILITIES)
        self._probability = drawn if self._given_probability is None else self._given_probability
        return begun

    def _around(self, function: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        import functools

        @functools.wraps(function)
        async def paused(*args: Any, **kwargs: Any) -> Any:
            await self._pause()
            result = await function(*args, **kwargs)
            await self._pause()
            return result

        return paused

    async def _pause(self) -> None:
        import asyncio

        loop = type(asyncio.get_running_loop()).__module__
        if loop.partition(".")[0] in REAL_LOOPS and (seconds := self.draw()):
            await asyncio.sleep(seconds)


class PauseFinder:
    """Import hook that adds the pauses to a module once it is loaded, and loads none itself."""

    def __init__(self, pauses: Pauses) -> None:
        self._pauses = pauses

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in PAUSED:
            return None
        others = [finder for finder in sys.meta_path if finder is not self]
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                load(module)
                self._pauses.add_to(module)

            spec.loader.exec_module = exec_module
        return spec


def pytest_configure(config: pytest.Config) -> None:
    if os.environ.get(SWITCH) != "1":
        return
    import random

    install(os.environ.setdefault(SEED, str(random.randrange(1_000_000))))
    if not _comes_from_parent():
        _add_to_children(config)


def pytest_report_header() -> str | None:
    if os.environ.get(SWITCH) != "1":
        return None
    seed = os.environ[SEED]
    return f"pauses: seed {seed} ({SWITCH}=1 {SEED}={seed} repeats them)"


def _comes_from_parent() -> bool:
    """Return whether this process found this file by the PYTHONPATH that its children inherit."""
    found = getattr(sys.modules.get("sitecustomize"), "__file__", None) or ""
    return os.path.realpath(found) == os.path.realpath(__file__)


def _add_to_children(config: pytest.Config) -> None:
    import shutil
    import tempfile

    directory = tempfile.mkdtemp(prefix="codehub-pauses-")
    config.add_cleanup(lambda: shutil.rmtree(directory, ignore_errors=True))
    os.chmod(directory, 0o755)  # some children are other users
    os.symlink(__file__, os.path.join(directory, "sitecustomize.py"))
    inherited = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [directory, inherited]))


if __name__ == "sitecustomize" and os.environ.get(SWITCH) == "1" and SEED in os.environ:
    install(os.environ[SEED])
