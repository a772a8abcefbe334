"""`codehub login` and `codehub logout`."""

import socket
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from codehub.cli.remote.common import complete_server, printable, reported_errors

if TYPE_CHECKING:
    from codehub.client.credentials import SavedServer

app = typer.Typer(add_completion=False, rich_markup_mode=None)
ACCOUNT_PAGE = "/account"
SCOPES = ("read", "manage", "use")


@app.command()
def login(
    url: Annotated[str, typer.Argument(help="The server's address, such as https://codehub.example.org.")],
    name: Annotated[
        str | None, typer.Option(help="Its name on this machine. The default is its host.")
    ] = None,
    token_stdin: Annotated[
        bool, typer.Option("--token-stdin", help="Read a token from standard input.")
    ] = False,
    user: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Make a token with this user's password, which is asked for."),
    ] = None,
    days: Annotated[
        int, typer.Option(min=1, max=3650, help="With --user: how long the token is valid.")
    ] = 90,
    scope: Annotated[
        list[str] | None, typer.Option(help="With --user: what the token permits (read, manage and use).")
    ] = None,
    browser: Annotated[bool, typer.Option(help="Open the page where tokens are made.")] = True,
) -> None:
    """Sign in to a server: with a token that you paste, or with your password."""
    from codehub.client.credentials import credentials_path, load, locked, save, server_name
    from codehub.client.requests import normalized_url

    with reported_errors():
        address = normalized_url(url)
        if user is not None:
            token = _make_token(address, user, days, scope or SCOPES)
        else:
            token = _read_token(address, from_input=token_stdin, browser=browser)
        saved = _check(name or server_name(address), address, token)
        path = credentials_path()
        with locked(path):
            save(path, load(path).with_server(saved))
        typer.echo(f"signed in to {saved.url} as {printable(saved.username)}")


@app.command()
def logout(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", autocompletion=complete_server)] = None,
) -> None:
    """Forget the token of a server. It stays valid: revoke it with `codehub tokens revoke`."""
    from codehub.client.credentials import credentials_path, load, locked, save
    from codehub.client.errors import ConfigurationError

    with reported_errors():
        path = credentials_path()
        with locked(path):
            credentials = load(path)
            if name is None and not credentials.current:
                raise ConfigurationError("You are not signed in.")
            server = credentials.named(name or credentials.current)
            save(path, credentials.without(server.name))
        typer.echo(f"signed out of {server.url}. Its token stays valid until you revoke it or it expires")


def _read_token(address: str, *, from_input: bool, browser: bool) -> str:
    if from_input:
        return sys.stdin.readline()
    if not sys.stdin.isatty():
        raise ValueError("there is no terminal to paste a token into. Use --token-stdin.")
    page = f"{address}{ACCOUNT_PAGE}"
    typer.echo(f"Make a token at {page}, and paste it here.", err=True)
    if browser:
        typer.launch(page)
    pasted: str = typer.prompt("Token", hide_input=True, err=True)
    return pasted


def _make_token(address: str, user: str, days: int, scopes: tuple[str, ...] | list[str]) -> str:
    from codehub.cli.remote.tokens import signed_in

    with signed_in(address, user) as client:
        taken = {token.name for token in client.tokens.list()}
        return client.tokens.create(_free_name(taken), scopes, expires_in_days=days).token


def _free_name(taken: set[str]) -> str:
    base = f"codehub on {socket.gethostname()}"[:58]
    names = [base, *(f"{base} {number}" for number in range(2, 1000))]
    return next(name for name in names if name not in taken)


def _check(name: str, address: str, token: str) -> "SavedServer":
    """Return the server with what its token says, if it is valid."""
    from codehub.client import Client
    from codehub.client.credentials import SavedServer
    from codehub.client.requests import check_token

    with Client(address, token) as client:
        session = client.session()
    return SavedServer(name, address, check_token(token), session.user.username)
