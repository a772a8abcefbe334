"""`codehub doctor`: what is well, what is not, and what to do about it."""

from rich.console import Console

from codehub.cli.findings import Finding, Level
from codehub.cli.machine_checks import check_machine
from codehub.cli.service_checks import check_exposure, check_services
from codehub.settings import Settings

STYLES = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "bold red"}


async def examine(settings: Settings) -> list[Finding]:
    return [*check_machine(settings), *await check_services(settings), *check_exposure(settings)]


def show(findings: list[Finding], console: Console) -> None:
    for finding in findings:
        console.print(f"{finding.level:<4}", style=STYLES[finding.level], end="  ")
        console.print(f"{finding.subject}: {finding.words}", markup=False, highlight=False, soft_wrap=True)
        if finding.advice:
            console.print(f"      -> {finding.advice}", markup=False, highlight=False, soft_wrap=True)
