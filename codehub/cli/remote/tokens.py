"""`codehub tokens ...`. No token reaches tokens, so each of these commands asks for a password."""

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from codehub.cli.remote.common import (
    Json,
    Server,
    local_time,
    print_json,
    print_table,
    printable,
    reported_errors,
)

if TYPE_CHECKING:
    from codehub.client import Client

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    help="List, make and revoke your tokens.",
)
User = Annotated[
    str | None,
    typer.Option("--user", metavar="NAME", help="Who signs in. The default is the user of your token."),
]
Account = Annotated[
    str | None, typer.Option("--of", metavar="NAME", help="The tokens of another account, as an admin.")
]


@app.command("list")
def list_tokens(user: User = None, of: Account = None, json: Json = False, server: Server = None) -> None:
    """List tokens, without their secrets."""
    with reported_errors(), _session(server, user) as client:
        found = _tokens(client, of).list()
        if json:
            print_json([token.raw for token in found])
            return
        rows = [
            (token.name, token.prefix, ", ".join(token.scopes), local_time(token.expires_at) or "never",
             local_time(token.last_used_at), token.id)
            for token in found
        ]  # fmt: skip
        print_table(("NAME", "TOKEN", "SCOPES", "EXPIRES", "LAST USED", "ID"), rows)


@app.command()
def create(
    name: str,
    scope: Annotated[list[str], typer.Option(help="read, manage, use or admin. Repeat it for several.")],
    workspace: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Bind it to this workspace. Repeat it for several."),
    ] = None,
    days: Annotated[int | None, typer.Option(min=1, max=3650, help="How long it is valid.")] = None,
    user: User = None,
    of: Account = None,
    json: Json = False,
    server: Server = None,
) -> None:
    """Make a token, and print it. It is not shown again."""
    with reported_errors(), _session(server, user) as client:
        ids = None if workspace is None else [client.workspaces.find(each).id for each in workspace]
        made = _tokens(client, of).create(name, scope, workspaces=ids, expires_in_days=days)
        if json:
            print_json(made.raw)
        else:
            typer.echo(made.token)


@app.command()
def revoke(name: str, user: User = None, of: Account = None, server: Server = None) -> None:
    """Revoke a token, by its name or id."""
    from codehub.client import NotFound

    with reported_errors(), _session(server, user) as client:
        tokens = _tokens(client, of)
        found = [token for token in tokens.list() if name in (token.name, token.id)]
        if not found:
            raise NotFound(404, "NOT_FOUND", f"There is no token {name!r}.")
        tokens.revoke(found[0].id)
        typer.echo(f"revoked {printable(found[0].name)}")


@contextlib.contextmanager
def signed_in(address: str, user: str) -> Iterator["Client"]:
    """Sign in with a password that is asked for, and out at the end."""
    from codehub.client import Client

    if sys.stdin.isatty():
        password: str = typer.prompt(f"Password of {user} on {address}", hide_input=True, err=True)
    else:
        password = sys.stdin.readline().rstrip("\n")
    with Client.sign_in(address, user, password) as client:
        yield client


@contextlib.contextmanager
def _session(server: str | None, user: str | None) -> Iterator["Client"]:
    from codehub.client import Client

    with Client(server=server) as client:
        address, name = client.url, user or client.session().user.username
    with signed_in(address, name) as person:
        yield person


def _tokens(client: "Client", of: str | None):  # type: ignore[no-untyped-def]
    return client.tokens if of is None else client.users.tokens(account_id(client, of))


def account_id(client: "Client", name: str) -> str:
    """Return the id of an account, by its name or id."""
    from codehub.client import NotFound

    for user in client.users.list():
        if name in (user.id, user.username):
            return user.id
    raise NotFound(404, "NOT_FOUND", f"There is no account {name!r}.")
