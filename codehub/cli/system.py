"""Commands that run the system on this machine: `up`, `down`, `migrate`, `doctor`, `ide`.

Each command imports what it needs when it runs, so that `--help` is fast.
"""

from pathlib import Path
from typing import Annotated

import typer

from codehub.cli.errors import report_errors
from codehub.cli.options import DataDir, load_settings

app = typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=True)
ide_app = typer.Typer(no_args_is_help=True, help="The IDE that workspaces run.")
app.add_typer(ide_app, name="ide")


@app.command()
def up(
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
            help="Run workspaces without isolation from each other. Only if you are the only user.",
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
        from codehub.cli.up import run

        log.configure("up", settings.log_level)
        auto = runtime == "auto" or (runtime is None and "runtime" not in settings.model_fields_set)
        run(settings, auto=auto)


@app.command()
def down(
    data_dir: DataDir = None,
    workspaces: Annotated[
        bool, typer.Option("--workspaces", help="Stop running workspaces as well.")
    ] = False,
) -> None:
    """Stop the system of a data directory. Workspaces keep running, unless you add --workspaces."""
    with report_errors():
        import asyncio

        from codehub.cli.down import stop_system, stop_workspaces

        settings = load_settings(data_dir=data_dir)
        stop_system(settings.data_dir)
        if workspaces:
            asyncio.run(stop_workspaces(settings))


@app.command()
def migrate(data_dir: DataDir = None) -> None:
    """Migrate the database to this version.

    In a new one, claim the empty volumes and archive store.
    """
    with report_errors():
        from codehub.cli.migration import run

        run(load_settings(data_dir=data_dir))


@app.command()
def doctor(data_dir: DataDir = None) -> None:
    """Check everything that CodeHub needs. The exit code is 1 if something is broken."""
    with report_errors():
        import asyncio

        from rich.console import Console

        from codehub.cli.doctor import examine, show
        from codehub.cli.findings import Severity

        findings = asyncio.run(examine(load_settings(data_dir=data_dir)))
        show(findings, Console())
    if any(finding.severity is Severity.FAIL for finding in findings):
        raise typer.Exit(1)


@ide_app.command("install")
def install_ide(
    tools_dir: Annotated[
        Path | None,
        typer.Option(
            envvar="CODEHUB_TOOLS_DIR",
            help="Where to install code-server (/var/cache/codehub for root, else ~/.cache/codehub).",
        ),
    ] = None,
) -> None:
    """Install code-server (VS Code in the browser) for the process runtime."""
    from codehub.cli import ide_progress
    from codehub.settings import default_tools_dir

    ide_progress.install(tools_dir or default_tools_dir())
