"""`codehub doctor`: check everything that CodeHub needs, and say what to do about problems."""

from rich.console import Console

from codehub.cli import runtime_choice
from codehub.cli.certificate_checks import check_certificate
from codehub.cli.findings import Finding, Severity, fail, merged, ok, warn
from codehub.cli.machine_checks import check_machine
from codehub.cli.part_users import check_users
from codehub.cli.process_checks import check_process_runtime
from codehub.cli.service_checks import check_exposure, check_services, recorded_checks
from codehub.runtimes.base import RuntimeFailure
from codehub.settings import Settings

STYLES = {Severity.OK: "green", Severity.WARN: "yellow", Severity.FAIL: "bold red"}


async def examine(settings: Settings) -> list[Finding]:
    """Run every check, and add those that the running system has recorded."""
    runtime = runtime_choice.last_runtime(settings.data_dir)
    if runtime is not None:
        settings = settings.model_copy(update={"runtime": runtime})
    docker = await _check_docker(settings)
    isolation = await check_process_runtime(settings)
    services = await check_services(settings)
    exposure = [*check_exposure(settings), *check_certificate(settings)]
    own = [*check_machine(settings), *check_users(settings), *isolation, docker, *services, *exposure]
    return merged(own, await recorded_checks(settings))


async def _check_docker(settings: Settings) -> Finding:
    """Check the Docker engine. A missing one is a failure only if Docker is used."""
    try:
        version = await runtime_choice.docker_version(settings)
    except RuntimeFailure as failure:
        if settings.runtime == "docker":
            return fail("docker", failure.message, "start the engine; until then workspaces stay as they are")
        return ok("docker", f"is not used, workspaces run as processes ({failure.message})")
    if settings.docker_firewall:
        message = "workspaces reach the internet, not this machine's networks, and only CodeHub reaches them"
        return ok("docker", f"{version} answers; {message}")
    message = (
        f"{version} answers, but DOCKER_FIREWALL is false: workspaces reach what this machine reaches, and "
        "anyone who can reach this machine may open them without a password"
    )
    return warn("docker", message, "deny both with your own firewall rules, or set DOCKER_FIREWALL=true")


def show(findings: list[Finding], console: Console) -> None:
    """Print each finding, with its advice on a second line."""
    for finding in findings:
        console.print(f"{finding.severity:<4}", style=STYLES[finding.severity], end="  ")
        console.print(f"{finding.subject}: {finding.message}", markup=False, highlight=False, soft_wrap=True)
        if finding.advice:
            console.print(f"      -> {finding.advice}", markup=False, highlight=False, soft_wrap=True)
