"""Start from STANDBY until the IDE responds, on both runtimes, beside a start without CodeHub."""

import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Protocol

from bench import table
from bench.sampler import Sampler
from bench.start.baselines import BareCommand, DockerRun
from bench.start.standby_workspace import StandbyWorkspace
from bench.tools import MissingToolError
from tests.docker.engine import EngineMissingError, OwnEngine
from tests.docker.system import DockerSystem
from tests.services import System, processes_of


class Start(Protocol):
    """Kind of start to measure.

    `end` is separate, because the processes that it ends may be reaped by a process that is not part
    of this run.
    """

    def measure(self) -> float: ...

    def end(self) -> None: ...


Starts = dict[str, Start]
ALLOWED_MS = 150
ONE_HOST = {"APPS_DOMAIN": ""}


def measure(directory: Path, sampler: Sampler, rounds: int) -> None:
    with _process(directory, sampler) as starts:
        _compare("Start on the process runtime", starts, sampler, rounds)
    try:
        with _docker(directory, sampler) as starts:
            _compare("Start on Docker", starts, sampler, rounds)
    except EngineMissingError as missing:
        raise MissingToolError(str(missing)) from missing


@contextmanager
def _process(directory: Path, sampler: Sampler) -> Iterator[Starts]:
    system = System(ONE_HOST)
    # The processes of workspaces are not descendants of ours.
    sampler.measured_processes = partial(processes_of, system.data_dir)
    try:
        workspace = StandbyWorkspace(system.start())
        home = directory / "home"
        home.mkdir()
        yield {"code-server alone": BareCommand(home), "STANDBY to responding": workspace}
    finally:
        system.close()


@contextmanager
def _docker(directory: Path, sampler: Sampler) -> Iterator[Starts]:
    engine = OwnEngine()
    system = DockerSystem(ONE_HOST | {"DOCKER_HOST": engine.url})
    engine_processes = partial(processes_of, engine.directory)
    sampler.measured_processes = lambda: [*engine_processes(), *processes_of(system.data_dir)]
    try:
        engine.start()
        engine.make_code_server()
        workspace = StandbyWorkspace(system.start())
        baseline = DockerRun(engine, workspace.workspace_id, directory)
        yield {"docker run alone": baseline, "STANDBY to responding": workspace}
    finally:
        system.close()
        engine.close()


def _compare(title: str, starts: Starts, sampler: Sampler, rounds: int) -> None:
    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in starts}
    for _ in range(rounds + 1):
        for name, start in starts.items():
            samples[name].append(sampler.sample(start.measure, start.end))
    # The first round fills the page cache, and does not count.
    _show(title, {name: measured[1:] for name, measured in samples.items()})


def _show(title: str, samples: dict[str, list[tuple[float, float]]]) -> None:
    medians = {
        name: statistics.median(seconds for seconds, _ in measured) for name, measured in samples.items()
    }
    baseline, with_codehub = medians.values()
    rows = [
        [
            name,
            table.median_and_range([seconds for seconds, _ in measured]),
            f"{(medians[name] - baseline) * 1000:+.0f}",
            f"{max(noise for _, noise in measured):.1f}",
        ]
        for name, measured in samples.items()
    ]
    header = ("start", "seconds (min–max)", f"ms more (at most {ALLOWED_MS})", "noise %")
    table.print_table(title, header, rows)
    more = (with_codehub - baseline) * 1000
    table.print_bound(f"{title} at most {ALLOWED_MS} ms more", f"{more:+.0f}", more <= ALLOWED_MS)
