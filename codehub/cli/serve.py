"""`codehub serve ...`: run one part against your own servers."""

import typer

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    help="Run one part against a PostgreSQL, Redis and archive store.",
)


@app.command()
def api() -> None:
    """Serve the API and the dashboard, where the gateway expects them (API_LISTEN)."""
    from codehub.cli import part_main

    part_main.api()


@app.command()
def gateway() -> None:
    """Serve the public port, and relay to the API and to workspaces."""
    from codehub.cli import part_main

    part_main.gateway()


@app.command()
def access() -> None:
    """Serve commands in running workspaces, where the gateway expects them (ACCESS_LISTEN)."""
    from codehub.cli import part_main

    part_main.access()


@app.command()
def coordinator() -> None:
    """Reconcile workspaces with their desired state. Several may run; one of them leads."""
    from codehub.cli import part_main

    part_main.coordinator()


if __name__ == "__main__":
    app()
