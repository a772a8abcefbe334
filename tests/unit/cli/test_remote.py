"""The commands that call a server: without one, and without the server's packages."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from codehub.cli.main import CLIENT, SYSTEM, app
from codehub.cli.remote.common import printable
from codehub.cli.remote.copy import Place
from codehub.cli.remote.escapes import Escapes
from tests.unit.client.test_package import run_without_server

LIMIT = 0.3
"""Seconds. A shell starts the command for each completion."""
_MODULES = (
    "remote.login", "remote.servers", "remote.workspaces", "remote.execs", "remote.copy", "remote.tokens",
    "remote.users", "remote.port_forward", "remote.piped_command", "remote.interactive_terminal",
)  # fmt: skip
OF_TYPER = ("pydantic", "pydantic_core")
ALLOWED = ("codehub.client", "codehub.cli.main", "codehub.cli.remote")


def test_the_commands_that_call_a_server_import_nothing_of_it() -> None:
    """`codehub.cli` itself is a package without content."""
    imports = "\n".join(f"import codehub.cli.{name}" for name in _MODULES)
    run_without_server(f"import codehub.cli.main\n{imports}", ALLOWED, OF_TYPER)


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["ws", "--help"]])
def test_help_needs_little_time_and_no_server(arguments: list[str]) -> None:
    """Processor time, which other programs do not add to. The first run may compile modules."""
    command = [sys.executable, "-m", "codehub", *arguments]
    spent = []
    for _ in range(3):
        before = _children_seconds()
        subprocess.run(
            command, check=True, capture_output=True, env=os.environ | {"PYTHONDONTWRITEBYTECODE": ""}
        )
        spent.append(_children_seconds() - before)
    assert min(spent) < LIMIT
    work = f"import runpy, sys; sys.argv = ['codehub', *{arguments!r}]\n"
    work += (
        "try: runpy.run_module('codehub', run_name='__main__')\nexcept SystemExit as end: assert not end.code"
    )
    modules = run_without_server(work, (*ALLOWED, "codehub.__main__"), OF_TYPER)
    assert "httpx" not in modules and "websockets" not in modules


def _children_seconds() -> float:
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def test_the_help_lists_both_halves_apart() -> None:
    shown = CliRunner().invoke(app, ["--help"]).stdout
    client, system = shown.index("Use a server"), shown.index("Run a server")
    assert all(client < shown.index(f"  {name} ") < system for name in CLIENT)
    assert all(system < shown.index(f"  {name} ", system) for name in SYSTEM)


@pytest.mark.parametrize("name", [*CLIENT, *SYSTEM])
def test_each_command_exists(name: str) -> None:
    result = CliRunner().invoke(app, [name, "--help"])
    assert result.exit_code == 0 and f"Usage: root {name} " in result.stdout, result.output
    assert "--show-completion" not in result.stdout


def test_a_server_command_names_the_package_that_is_missing() -> None:
    program = (
        "import sys; sys.modules['pydantic_settings'] = sys.modules['structlog'] = None\n"
        "from codehub.cli.main import app; app(['up'])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "pip install 'codehub[server]'" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("demo:", Place("demo", "")),
        ("demo:a/b:c", Place("demo", "a/b:c")),
        ("demo:/etc", Place("demo", "/etc")),
        ("./a:b", Place(None, "./a:b")),
        ("/a:b", Place(None, "/a:b")),
        (":a", Place(None, ":a")),
        ("plain", Place(None, "plain")),
    ],
)
def test_places_of_a_copy_are_told_apart(text: str, place: Place) -> None:
    assert Place.parse(text) == place


@pytest.mark.parametrize(
    ("typed", "passed", "leaves"),
    [
        ([b"ls ~.\r"], b"ls ~.\r", False),
        ([b"~."], b"", True),
        ([b"ls\r~", b"."], b"ls\r", True),
        ([b"~~."], b"~.", False),
        ([b"\r~x"], b"\r~x", False),
        ([b"a~", b"."], b"a~.", False),
        ([b"x\n~.rest"], b"x\n", True),
    ],
)
def test_only_a_tilde_and_a_dot_in_a_new_line_leave(typed: list[bytes], passed: bytes, leaves: bool) -> None:
    escapes = Escapes()
    results = [escapes.feed(data) for data in typed]
    assert b"".join(data for data, _ in results) == passed
    assert results[-1][1] is leaves


def test_names_of_others_do_not_control_the_terminal() -> None:
    assert printable("a\x1b[31mb\r\n\x07") == "a�[31mb���"
    assert printable("이름 ü") == "이름 ü"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CODEHUB_")}
    return kept | {"CODEHUB_CREDENTIALS_FILE": str(tmp_path / "credentials.json")}


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["ws", "list"], 3),
        (["exec", "a", "--", "b"], 125),
        (["cp", "a", "b"], 2),
        (["ws", "list", "--phase", "HAPPY"], 2),
        (["login", "localhost:1"], 3),
        (["login", "http://localhost:1"], 1),
        (["users", "list", "--server", "other"], 3),
    ],
)
def test_without_a_server_the_exit_code_says_why(
    environment: dict[str, str], arguments: list[str], code: int
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "codehub", *arguments], env=environment, capture_output=True, text=True,
        check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert done.stderr and "Traceback" not in done.stderr


def test_a_server_that_is_not_there_is_exit_code_6(environment: dict[str, str]) -> None:
    address = {"CODEHUB_URL": "http://127.0.0.1:9", "CODEHUB_TOKEN": "chub_" + "x" * 40}
    program = "from codehub.cli.remote import common; common.RETRY_SECONDS = 0.1\n"
    program += "from codehub.cli.main import app; app()"
    done = subprocess.run(
        [sys.executable, "-c", program, "ws", "list"], env=environment | address, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 6, done.stderr
    assert "http://127.0.0.1:9 cannot be reached" in done.stderr


def test_servers_are_listed_and_chosen(environment: dict[str, str]) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "codehub", "servers", *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    path = Path(environment["CODEHUB_CREDENTIALS_FILE"])
    servers = {name: {"url": f"https://{name}.example", "token": "chub_x", "username": "u"} for name in "ab"}
    path.write_text(json.dumps({"current": "a", "servers": servers}))
    path.chmod(0o600)
    assert run("use", "b").stdout == "using b\n"
    listed = json.loads(run("list", "--json").stdout)
    assert [(each["name"], each["current"]) for each in listed] == [("a", False), ("b", True)]
    assert "chub_x" not in run("list").stdout
    assert run("use", "c").returncode == 3
