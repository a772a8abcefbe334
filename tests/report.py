"""Report of a test run: times of the layers, slowest tests, commands that repeat failures."""

import os
import time
from collections import defaultdict
from pathlib import Path, PurePath

import pytest
from _pytest.terminal import TerminalReporter

SLOWEST = 10
NOT_WORTH_SHOWING = 1.0

_began = time.monotonic()


def layer_of(nodeid: str) -> str:
    """Return the layer of a test, such as `integration/gateway` or `unit`."""
    parts = PurePath(nodeid.partition("::")[0]).parts[1:-1]
    return "/".join(parts[:2] if parts[:1] == ("integration",) else parts[:1]) or "tests"


class ImmediateFailureReport:
    """Plugin that names a test as soon as it fails; the details follow at the end of the run."""

    def __init__(self, terminal: TerminalReporter) -> None:
        self._terminal = terminal

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._terminal.ensure_newline()
            self._terminal.write_line(f"{report.nodeid} failed ({report.when})", red=True)
            self._terminal.write_line(f"  {_reason(report)}")


def _reason(report: pytest.TestReport) -> str:
    """Return the reason in one line, because an interrupted run never shows the details."""
    crash = getattr(report.longrepr, "reprcrash", None)
    words = report.longreprtext if crash is None else crash.message
    return words.strip().partition("\n")[0][:300]


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if isinstance(terminal, TerminalReporter) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(ImmediateFailureReport(terminal))


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """Print the times of layers and slowest tests, and commands that repeat the failures."""
    reports = [
        report
        for category in ("passed", "failed", "error", "skipped", "")
        for report in terminalreporter.stats.get(category, [])
        if isinstance(report, pytest.TestReport)
    ]
    if reports:
        _show_times(terminalreporter, reports)
    failed = dict.fromkeys(report.nodeid for report in reports if report.failed)
    if failed:
        commands = [_repeat(nodeid) for nodeid in failed]
        terminalreporter.section(f"{len(failed)} failed; to repeat one alone")
        for command in commands:
            terminalreporter.write_line(command, red=True)
        if path := os.environ.get("CODEHUB_REPEAT_FAILED"):
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            with Path(path).open("a") as file:
                file.writelines(f"{command}\n" for command in commands)


def _show_times(terminal: TerminalReporter, reports: list[pytest.TestReport]) -> None:
    layers: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for report in reports:
        layers[layer_of(report.nodeid)][report.nodeid] += report.duration
    totals = {layer: sum(tests.values()) for layer, tests in layers.items()}
    wall = time.monotonic() - _began
    terminal.section("where the time went")
    terminal.write_line(f"{sum(totals.values()):.0f} s of tests in {wall:.0f} s")
    for layer in sorted(layers, key=lambda name: -totals[name]):
        tests = layers[layer]
        terminal.write_line(f"{totals[layer]:7.1f} s  {layer} ({len(tests)} tests)", bold=True)
        for nodeid in sorted(tests, key=lambda name: -tests[name])[:SLOWEST]:
            if tests[nodeid] >= NOT_WORTH_SHOWING:
                terminal.write_line(f"  {tests[nodeid]:7.1f} s  {nodeid}")


def _repeat(nodeid: str) -> str:
    settings = [
        f"{name}={os.environ[name]}"
        for name in ("CODEHUB_TEST_ALL", "CODEHUB_TEST_SEED", "CODEHUB_PAUSES", "CODEHUB_PAUSES_SEED")
        if os.environ.get(name)
    ]
    return " ".join(["env", *settings, ".venv/bin/python -m pytest", f"'{nodeid}'"])
