"""The command `codehub`. Each command loads what it needs when it runs, so that `--help` answers at once."""

from pathlib import Path
from typing import Annotated

import typer

import codehub
from codehub.cli import serve, users
from codehub.cli.errors import report_errors
from codehub.cli.options import DataDir, load_settings

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
    rich_markup_mode=None,  # loading Rich doubles the time that --help takes
    help="CodeHub: VS Code in the browser, homes that are never lost.",
)  # fmt: skip
app.add_typer(serve.app, name="serve")
app.add_typer(users.app, name="users")
tools = typer.Typer(no_args_is_help=True, help="The IDE that workspaces run.")
app.add_typer(tools, name="ide")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(codehub.__version__)
        raise typer.Exit


@app.callback()
def codehub_command(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    pass


@app.command("up")
def start(
    data_dir: DataDir = None,
    port: Annotated[int | None, typer.Option(help="The public port (PORT, 8080).")] = None,
    host: Annotated[str | None, typer.Option(help="The address to listen on (HOST, 127.0.0.1).")] = None,
    runtime: Annotated[
        str | None,
        typer.Option(help="What workspaces run on: process, docker, or auto (Docker if it answers)."),
    ] = None,
    insecure_process_runtime: Annotated[
        bool | None,
        typer.Option(
            "--insecure-process-runtime",
            help="Run workspaces without a barrier between them. For yourself alone.",
        ),
    ] = None,
) -> None:
    """Run the whole system on this machine, until Ctrl-C or SIGTERM."""
    with report_errors():
        settings = load_settings(
            data_dir=data_dir,
            port=port,
            host=host,
            runtime=None if runtime == "auto" else runtime,
            insecure_process_runtime=insecure_process_runtime,
        )
        from codehub import log
        from codehub.cli import up

        log.configure("up", settings.log_level)
        auto = runtime == "auto" or (runtime is None and "runtime" not in settings.model_fields_set)
        up.run(settings, auto=auto)


@app.command("down")
def stop(
    data_dir: DataDir = None,
    workspaces: Annotated[
        bool, typer.Option("--workspaces", help="Stop running workspaces as well.")
    ] = False,
) -> None:
    """Stop the system of a data directory; workspaces keep running unless told otherwise."""
    with report_errors():
        import asyncio

        from codehub.cli import down

        settings = load_settings(data_dir=data_dir)
        down.stop_system(settings.data_dir)
        if workspaces:
            asyncio.run(down.stop_workspaces(settings))


@app.command("migrate")
def upgrade(data_dir: DataDir = None) -> None:
    """Bring the database to this version's schema; in a new one, claim empty volumes and archive store."""
    with report_errors():
        from codehub.cli import migration

        migration.run(load_settings(data_dir=data_dir))


@app.command("doctor")
def diagnose(data_dir: DataDir = None) -> None:
    """Look at everything CodeHub needs; ends with 1 when something is broken."""
    with report_errors():
        import asyncio

        from rich.console import Console

        from codehub.cli import doctor
        from codehub.cli.findings import Level

        findings = asyncio.run(doctor.examine(load_settings(data_dir=data_dir)))
        doctor.show(findings, Console())
    if any(finding.level is Level.FAIL for finding in findings):
        raise typer.Exit(1)


@tools.command("install")
def install_ide(
    tools_dir: Annotated[
        Path | None,
        typer.Option(
            envvar="CODEHUB_TOOLS_DIR",
            help="Where Node and code-server go (/var/cache/codehub for root, else ~/.cache/codehub).",
        ),
    ] = None,
) -> None:
    """Install code-server (VS Code in the browser) for the process runtime."""
    from codehub.cli import ide_progress
    from codehub.settings import default_tools_dir

    ide_progress.install(tools_dir or default_tools_dir())


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(codehub.__version__)
