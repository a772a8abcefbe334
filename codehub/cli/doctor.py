"""`codehub doctor`: what is well, what is not, and what to do about it."""

from rich.console import Console

from codehub.cli import runtime_choice
from codehub.cli.certificates import check_certificate
from codehub.cli.findings import Finding, Level, fail, merged, ok, warn
from codehub.cli.machine_checks import check_machine
from codehub.cli.part_users import check_users
from codehub.cli.process_checks import check_process_runtime
from codehub.cli.service_checks import check_exposure, check_services, recorded_checks
from codehub.runtimes.base import RuntimeFailure
from codehub.settings import Settings

STYLES = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "bold red"}


async def examine(settings: Settings) -> list[Finding]:
    used = runtime_choice.last_runtime(settings.data_dir)
    if used is not None:
        settings = settings.model_copy(update={"runtime": used})
    engine = await _engine(settings)
    walls = await check_process_runtime(settings)
    services = await check_services(settings)
    exposure = [*check_exposure(settings), *check_certificate(settings)]
    own = [*check_machine(settings), *check_users(settings), *walls, engine, *services, *exposure]
    return merged(own, await recorded_checks(settings))


async def _engine(settings: Settings) -> Finding:
    """Docker is a fault only where it is used."""
    try:
        version = await runtime_choice.engine(settings)
    except RuntimeFailure as failure:
        if settings.runtime == "docker":
            return fail("docker", failure.message, "start the engine; workspaces wait for it as they are")
        return ok("docker", f"is not used, workspaces run as processes ({failure.message})")
    if settings.docker_firewall:
        walls = "workspaces reach the internet, not this machine's networks, and only CodeHub reaches them"
        return ok("docker", f"{version} answers; {walls}")
    message = (
        f"{version} answers, but DOCKER_FIREWALL is false: workspaces reach what this machine reaches, and "
        "whoever has a way to this machine may open them without a password"
    )
    return warn("docker", message, "deny both by rules of your own, or set DOCKER_FIREWALL=true")


def show(findings: list[Finding], console: Console) -> None:
    for finding in findings:
        console.print(f"{finding.level:<4}", style=STYLES[finding.level], end="  ")
        console.print(f"{finding.subject}: {finding.message}", markup=False, highlight=False, soft_wrap=True)
        if finding.advice:
            console.print(f"      -> {finding.advice}", markup=False, highlight=False, soft_wrap=True)
