"""The command `codehub`."""

import asyncio
from typing import Annotated

import typer
from rich.console import Console

import codehub
from codehub import log
from codehub.cli import database, doctor, down, ide, serve, up, users
from codehub.cli.errors import told
from codehub.cli.findings import Level
from codehub.cli.options import DataDir, load_settings
from codehub.store import migrate, schema

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
    help="CodeHub: VS Code in the browser, homes that are never lost.",
)  # fmt: skip
app.add_typer(serve.app, name="serve")
app.add_typer(users.app, name="users")
tools = typer.Typer(no_args_is_help=True, help="The IDE that workspaces run.")
tools.command("install")(ide.install)
app.add_typer(tools, name="ide")


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
            help="Run workspaces without a wall between them. For yourself alone.",
        ),
    ] = None,
) -> None:
    """Run the whole system on this machine, until Ctrl-C or SIGTERM."""
    with told():
        settings = load_settings(
            data_dir=data_dir,
            port=port,
            host=host,
            runtime=None if runtime == "auto" else runtime,
            insecure_process_runtime=insecure_process_runtime,
        )
        log.configure("up", settings.log_level)
        unsaid = runtime is None and "runtime" not in settings.model_fields_set
        asyncio.run(up.run(settings, auto=unsaid or runtime == "auto"))


@app.command("down")
def stop(
    data_dir: DataDir = None,
    workspaces: Annotated[
        bool, typer.Option("--workspaces", help="Stop running workspaces as well.")
    ] = False,
) -> None:
    """Stop the system of a data directory; workspaces keep running unless told otherwise."""
    with told():
        settings = load_settings(data_dir=data_dir)
        down.stop_system(settings.data_dir)
        if workspaces:
            asyncio.run(down.stop_workspaces(settings))


@app.command("migrate")
def upgrade(data_dir: DataDir = None) -> None:
    """Bring the database to this version's schema."""
    with told():
        settings = load_settings(data_dir=data_dir)
        database.with_engine(settings, lambda _engine: migrate.upgrade(database.database_url(settings)))
        typer.echo(f"the database is at schema {schema.head()}")


@app.command("doctor")
def diagnose(data_dir: DataDir = None) -> None:
    """Look at everything CodeHub needs; ends with 1 when something is broken."""
    with told():
        findings = asyncio.run(doctor.examine(load_settings(data_dir=data_dir)))
        doctor.show(findings, Console())
    if any(finding.level is Level.FAIL for finding in findings):
        raise typer.Exit(1)


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(codehub.__version__)
