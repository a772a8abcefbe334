"""`codehub users ...`: manage accounts on the machine itself; some also on a server, through its API."""

import secrets
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from codehub.cli.errors import report_errors
from codehub.cli.options import DataDir, load_settings
from codehub.clock import utc_now
from codehub.domain.audit import CLI
from codehub.domain.states import Role

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

    from codehub.database.accounts import Account

T = TypeVar("T")

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    help="Manage accounts, on this machine or on a server.",
)
Name = Annotated[str, typer.Argument(help="The user's name.")]
Generate = Annotated[bool, typer.Option("--generate", help="Generate a password and print it.")]
OnServer = Annotated[
    str | None,
    typer.Option(
        "--server", "-s", metavar="NAME", help="Call this server, by its name or address, as an admin."
    ),
]
PAGE = 1000


@app.command("list")
def list_users(
    data_dir: DataDir = None,
    server: OnServer = None,
    json: Annotated[bool, typer.Option("--json", help="With --server: print JSON.")] = False,
) -> None:
    """List every account."""
    if server is not None:
        from codehub.cli.remote import users as remote

        remote.list_users(server, json=json)
        return

    async def work(engine: "AsyncEngine") -> "list[Account]":
        from codehub.database import accounts

        found: list[Account] = []
        async with engine.connect() as conn:
            while True:
                page, total = await accounts.list_accounts(conn, PAGE, len(found))
                found += page
                if not page or len(found) >= total:
                    return found

    with report_errors():
        from rich.console import Console
        from rich.table import Table

        table = Table("name", "role", "created", "id", box=None)
        for account in _with_engine(data_dir, work):
            created = account.created_at.isoformat(timespec="seconds")
            table.add_row(account.username, account.role.value, created, account.id)
        Console().print(table)


@app.command()
def create(
    name: Name,
    role: Annotated[Role, typer.Option(help="What the account may do.")] = Role.USER,
    generate: Generate = False,
    data_dir: DataDir = None,
) -> None:
    """Create an account. Prompt for the password, or read it from standard input."""

    async def work(engine: "AsyncEngine") -> None:
        from codehub.database import accounts

        await accounts.create_account(engine, name, password, role, actor=CLI, now=utc_now())

    with report_errors():
        password = _password(generate)
        _with_engine(data_dir, work)
        _report(f"created {role.value} {name.lower()}", password if generate else None)


@app.command("create-service")
def create_service(
    name: Name,
    server: Annotated[str, typer.Option("--server", "-s", metavar="NAME", help="By its name or address.")],
) -> None:
    """Create an account for programs on a server, without a password."""
    from codehub.cli.remote import users as remote

    remote.create_service(server, name)


@app.command("create-admin")
def create_admin(
    name: Annotated[
        str | None, typer.Argument(help="The admin's name (ADMIN_USERNAME, admin).", show_default=False)
    ] = None,
    generate: Generate = False,
    data_dir: DataDir = None,
) -> None:
    """Create an admin, such as the first one of a new installation."""
    with report_errors():
        chosen = name or load_settings(data_dir=data_dir).admin_username
        create(chosen, Role.ADMIN, generate, data_dir)


@app.command()
def passwd(name: Name, generate: Generate = False, data_dir: DataDir = None) -> None:
    """Set a new password, and end the user's sessions."""

    async def work(engine: "AsyncEngine") -> None:
        from codehub.database import accounts

        async with engine.connect() as conn:
            account = await accounts.find_account(conn, name)
        changes = accounts.AccountChanges(password=password)
        await accounts.change_account(engine, account.id, changes, actor=CLI, now=utc_now())

    with report_errors():
        password = _password(generate)
        _with_engine(data_dir, work)
        _report(f"the password of {name.lower()} is set", password if generate else None)


@app.command()
def delete(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    data_dir: DataDir = None,
    server: OnServer = None,
) -> None:
    """Delete an account, and put its workspaces into the trash."""
    if server is not None:
        from codehub.cli.remote import users as remote

        remote.delete(server, name, yes=yes)
        return

    async def work(engine: "AsyncEngine") -> None:
        from codehub.database import accounts

        async with engine.connect() as conn:
            account = await accounts.find_account(conn, name)
        await accounts.delete_account(engine, account.id, actor=CLI, now=utc_now())

    with report_errors():
        if not yes:
            typer.confirm(f"Delete {name} and all their workspaces?", abort=True)
        _with_engine(data_dir, work)
        _report(f"deleted {name.lower()}", None)


def _with_engine(data_dir: Path | None, work: "Callable[[AsyncEngine], Coroutine[Any, Any, T]]") -> T:
    from codehub import log
    from codehub.cli.operator_database import with_engine

    settings = load_settings(data_dir=data_dir)
    log.configure("cli", settings.log_level)
    return with_engine(settings, work)


def _password(generate: bool) -> str:
    if generate:
        return secrets.token_urlsafe(15)
    if sys.stdin.isatty():
        entered: str = typer.prompt("Password", hide_input=True, confirmation_prompt=True)
        return entered
    return sys.stdin.readline().rstrip("\n")


def _report(message: str, password: str | None) -> None:
    typer.echo(message)
    if password is not None:
        typer.echo(f"  password: {password}")
