"""From STANDBY to an answering IDE, on both runtimes, beside the same start by hand."""

import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Protocol

from bench import table
from bench.machine import Quiet
from bench.start import by_hand
from bench.start.woken import Woken
from bench.tools import MissingToolError
from tests.docker.engine import EngineMissingError, OwnEngine
from tests.docker.system import DockerSystem
from tests.services import System, processes_of


class Way(Protocol):
    """One way to start. What it leaves running is ended apart: whoever reaps it is not part of this run."""

    def measure(self) -> float: ...

    def end(self) -> None: ...


Ways = dict[str, Way]
ALLOWED_MS = 150
ONE_HOST = {"APPS_DOMAIN": ""}


def measure(directory: Path, quiet: Quiet, rounds: int) -> None:
    with _process(directory, quiet) as ways:
        _compare("Start on the process runtime", ways, quiet, rounds)
    try:
        with _docker(directory, quiet) as ways:
            _compare("Start on Docker", ways, quiet, rounds)
    except EngineMissingError as missing:
        raise MissingToolError(str(missing)) from missing


@contextmanager
def _process(directory: Path, quiet: Quiet) -> Iterator[Ways]:
    system = System(ONE_HOST)
    quiet.also_own = partial(processes_of, system.data_dir)  # workspaces are nobody's children
    try:
        woken = Woken(system.start())
        home = directory / "home"
        home.mkdir()
        yield {"code-server by hand": by_hand.Bare(home), "STANDBY to answering": woken}
    finally:
        system.close()


@contextmanager
def _docker(directory: Path, quiet: Quiet) -> Iterator[Ways]:
    engine = OwnEngine()
    system = DockerSystem(ONE_HOST | {"DOCKER_HOST": engine.url})
    own = partial(processes_of, engine.directory)
    quiet.also_own = lambda: [*own(), *processes_of(system.data_dir)]
    try:
        engine.start()
        engine.make_code_server()
        woken = Woken(system.start())
        twin = by_hand.DockerTwin(engine, woken.workspace_id, directory)
        yield {"docker run by hand": twin, "STANDBY to answering": woken}
    finally:
        system.close()
        engine.close()


def _compare(title: str, ways: Ways, quiet: Quiet, rounds: int) -> None:
    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(rounds + 1):
        for name, way in ways.items():
            samples[name].append(quiet.sample(way.measure, way.end))
    _show(title, {name: own[1:] for name, own in samples.items()})  # the first round fills the page cache


def _show(title: str, samples: dict[str, list[tuple[float, float]]]) -> None:
    medians = {name: statistics.median(seconds for seconds, _ in own) for name, own in samples.items()}
    alone, woken = medians.values()
    rows = [
        [
            name,
            table.middle([seconds for seconds, _ in own]),
            f"{(medians[name] - alone) * 1000:+.0f}",
            f"{max(noise for _, noise in own):.1f}",
        ]
        for name, own in samples.items()
    ]
    header = ("what", "seconds (min–max)", f"ms more (at most {ALLOWED_MS})", "noise %")
    table.show(title, header, rows)
    more = (woken - alone) * 1000
    table.bound(f"{title} at most {ALLOWED_MS} ms more", f"{more:+.0f}", more <= ALLOWED_MS)
