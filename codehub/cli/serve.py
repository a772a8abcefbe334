"""`codehub serve ...`: one part, against servers of one's own."""

import typer

app = typer.Typer(no_args_is_help=True, help="Run one part against a PostgreSQL, Redis and archive store.")


@app.command()
def api() -> None:
    """The HTTP API and the dashboard, at the address that the gateway forwards to (API_LISTEN)."""
    from codehub.cli import part_main

    part_main.api()


@app.command()
def gateway() -> None:
    """The public port: relays to the API and to workspaces."""
    from codehub.cli import part_main

    part_main.gateway()


@app.command()
def coordinator() -> None:
    """Reconciles workspaces with their desired state. Several may run; one of them leads."""
    from codehub.cli import part_main

    part_main.coordinator()


if __name__ == "__main__":
    app()
