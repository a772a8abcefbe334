"""`codehub servers ...`: the servers in the credentials file."""

import typer

from codehub.cli.remote.common import Json, complete_server, print_json, print_table, reported_errors

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    help="The servers that you are signed in to.",
)
NAME = typer.Argument(metavar="NAME", autocompletion=complete_server)


@app.command("list")
def list_servers(json: Json = False) -> None:
    """List the servers that you are signed in to."""
    from codehub.client.credentials import credentials_path, load

    with reported_errors():
        credentials = load(credentials_path())
        rows = [(name, server.url, server.username) for name, server in sorted(credentials.servers.items())]
        if json:
            keys = ("name", "url", "username")
            print_json(
                [
                    dict(zip(keys, row, strict=True)) | {"current": row[0] == credentials.current}
                    for row in rows
                ]
            )
            return
        marked = [("*" if row[0] == credentials.current else "", *row) for row in rows]
        print_table(("", "NAME", "URL", "USER"), marked)


@app.command()
def use(name: str = NAME) -> None:
    """Choose the server of commands that name none."""
    from codehub.client.credentials import credentials_path, load, locked, save

    with reported_errors():
        path = credentials_path()
        with locked(path):
            chosen = load(path).with_current(name)
            save(path, chosen)
        typer.echo(f"using {chosen.current}")
