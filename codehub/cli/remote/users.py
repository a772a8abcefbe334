"""`codehub users --server ...`: accounts of a server, for admins."""

import typer

from codehub.cli.remote.common import connect, local_time, print_json, print_table, printable, reported_errors
from codehub.cli.remote.tokens import account_id


def list_users(server: str, *, json: bool) -> None:
    with reported_errors(), connect(server) as client:
        found = client.users.list()
        if json:
            print_json([user.raw for user in found])
            return
        rows = [
            (user.username, "service" if user.service else user.role, local_time(user.created_at), user.id)
            for user in found
        ]
        print_table(("NAME", "ROLE", "CREATED", "ID"), rows)


def create_service(server: str, name: str) -> None:
    with reported_errors(), connect(server) as client:
        made = client.users.create_service(name)
        typer.echo(f"created service account {printable(made.username)}")


def delete(server: str, name: str, *, yes: bool) -> None:
    with reported_errors(), connect(server) as client:
        user_id = account_id(client, name)
        if not yes:
            typer.confirm(
                f"Delete {printable(name)} on {client.url} and all their workspaces?", abort=True, err=True
            )
        client.users.delete(user_id)
        typer.echo(f"deleted {printable(name)}")
