"""The command line on a whole system, in pipes and in a pseudo-terminal."""

import contextlib
import json
import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from codehub.client import Client
from tests.integration.client.conftest import is_deleted
from tests.integration.client.test_commands import kill_parts
from tests.services import System
from tests.terminals import InTerminal
from tests.waiting import PATIENCE, wait_for

pytestmark = pytest.mark.sampled(9, "test_")

CODEHUB = [sys.executable, "-m", "codehub"]
DOCS = Path(__file__).parents[3] / "docs"


@dataclass
class Cli:
    """The command `codehub` of somebody who is signed in."""

    system: System
    directory: Path
    client: Client

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("CODEHUB_")}
        return kept | {
            "CODEHUB_CREDENTIALS_FILE": str(self.directory / "credentials.json"),
            "TERM": "xterm", "BROWSER": "true",
        }  # fmt: skip

    def __call__(
        self, *arguments: str, typed: str | bytes = b"", code: int = 0, **environment: str
    ) -> subprocess.CompletedProcess[bytes]:
        done = subprocess.run(
            [*CODEHUB, *arguments], input=typed.encode() if isinstance(typed, str) else typed, check=False,
            capture_output=True, env=self.environment | environment, timeout=PATIENCE, cwd=self.directory,
        )  # fmt: skip
        assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
        assert b"Traceback" not in done.stderr
        return done

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "--json").stdout)

    def in_terminal(self, *arguments: str) -> InTerminal:
        return InTerminal([*CODEHUB, *arguments], self.environment)


@pytest.fixture
def cli(system: System, token: str, tmp_path: Path) -> Iterator[Cli]:
    with Client(system.base_url, token, retry_seconds=PATIENCE) as client:
        made = Cli(system, tmp_path, client)
        made("login", system.base_url, "--token-stdin", "--name", "test", typed=f"{token}\n")
        yield made


@pytest.fixture
def demo(cli: Cli) -> Iterator[str]:
    made = cli.client.workspaces.create("demo")
    made.wait_until("RUNNING", PATIENCE)
    yield "demo"
    wait_for(lambda: is_deleted(made), "the workspace to be deleted")


def test_signing_in_saves_the_token_for_its_owner_only(cli: Cli, token: str) -> None:
    path = cli.directory / "credentials.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert cli.json("servers", "list") == [
        {"name": "test", "url": cli.system.base_url, "username": "admin", "current": True}
    ]
    assert token.encode() not in cli("servers", "list").stdout
    refused = cli("login", cli.system.base_url, "--token-stdin", "--name", "bad", typed="chub_bad\n", code=3)
    assert b"codehub:" in refused.stderr and "bad" not in json.loads(path.read_text())["servers"]
    cli("logout", "test")
    assert b"codehub login" in cli("ws", "list", code=3).stderr
    answer = cli("ws", "list", "--json", CODEHUB_URL=cli.system.base_url, CODEHUB_TOKEN=token)
    assert isinstance(json.loads(answer.stdout), list)


def test_signing_in_with_a_password_makes_a_token(cli: Cli) -> None:
    password = f"{cli.system.admin_password}\n"
    cli("login", cli.system.base_url, "--user", "admin", "--name", "mine", "--days", "1", typed=password)
    assert cli.json("ws", "list", "--server", "mine") == cli.json("ws", "list")
    listed = json.loads(cli("tokens", "list", "--json", typed=password).stdout)
    [made] = [each for each in listed if each["name"].startswith("codehub on ")]
    cli("tokens", "revoke", made["id"], typed=password)
    wait_for(lambda: is_signed_out(cli), "the token to end")


def is_signed_out(cli: Cli) -> bool:
    done = subprocess.run(
        [*CODEHUB, "ws", "list", "--server", "mine"], env=cli.environment, capture_output=True, check=False
    )
    return done.returncode == 3


def test_a_token_is_pasted_on_a_terminal_and_not_shown(cli: Cli, token: str) -> None:
    with cli.in_terminal("login", cli.system.base_url, "--name", "pasted") as terminal:
        at = terminal.expect("Token")
        wait_for(terminal.is_hidden, "the prompt to hide what is typed")
        terminal.type(f"{token}\n")
        terminal.expect("signed in", at)
        assert terminal.wait() == 0
    assert token.encode() not in terminal.shown and b"/account" in terminal.shown


def test_a_workspace_goes_through_its_life(cli: Cli) -> None:
    made = cli.json("ws", "create", "life", "--description", "a test")
    assert (made["phase"], made["operation"], made["description"]) == ("RUNNING", "NONE", "a test")
    assert made["id"] in [each["id"] for each in cli.json("ws", "list")]
    assert b"life" in cli("ws", "list").stdout and b"RUNNING" in cli("ws", "show", "life").stdout
    assert cli("ws", "open", "life", "--print").stdout.decode().strip() == made["url"]
    port = cli("ws", "open", "life", "--port", "3000", "--print").stdout.decode().strip()
    assert port == f"{made['url']}proxy/3000/"
    cli("ws", "logs", "life")
    assert cli.json("ws", "stop", "life")["phase"] == "STANDBY"
    refused = cli("exec", "life", "--", "true", code=125)
    assert refused.stderr.startswith(b"codehub: ") and b"INVALID_STATE" in refused.stderr
    assert cli("exec", "--wake", "life", "--", "echo", "awake").stdout == b"awake\n"
    assert cli.json("ws", "archive", "life")["phase"] == "ARCHIVED"
    assert cli.json("ws", "restore", "life")["phase"] == "STANDBY"
    assert cli("ws", "wait", "life", "RUNNING", "--timeout", "0.2", code=6).stderr
    cli("ws", "delete", "life", "--yes")
    cli("ws", "show", "life", code=4)
    workspace = cli.client.workspaces.find(made["id"], trash=True)
    wait_for(lambda: try_undelete(cli, made["id"]), "the workspace to come back")
    assert b"life" in cli("ws", "show", made["id"]).stdout
    wait_for(lambda: is_deleted(workspace), "the workspace to be deleted")


def try_undelete(cli: Cli, workspace_id: str) -> bool:
    with contextlib.suppress(AssertionError):
        cli("ws", "undelete", workspace_id, code=5)
        return False
    return True


def test_exec_has_the_streams_and_the_exit_code_of_the_command(cli: Cli, demo: str) -> None:
    done = cli(
        "exec", "-e", "A=b c", "-w", "/tmp", demo, "--", "sh", "-c", 'echo "$A"; pwd >&2; exit 7', code=7
    )
    assert (done.stdout, done.stderr) == (b"b c\n", b"/tmp\n")
    data = os.urandom(300_000)
    assert cli("exec", "-i", demo, "--", "cat", typed=data).stdout == data
    assert cli("exec", demo, "ls", "-d", "/").stdout == b"/\n"
    assert cli("exec", demo, "--", "echo one | tr o O").stdout == b"One\n"
    assert b"killed (Timeout)" in cli("exec", "--timeout", "1", demo, "--", "sleep", "100", code=124).stderr
    cli("exec", "missing", "--", "true", code=125)
    cli("exec", "-t", demo, "--", "true", code=125)
    exec_id = cli("exec", "-d", demo, "--", "sleep", "0").stdout.decode().strip()
    assert cli.client.workspaces.find(demo).get_exec(exec_id).wait() == 0


def test_a_reader_that_goes_ends_the_command_quietly(cli: Cli, demo: str) -> None:
    loop = "while :; do echo y; sleep 0.01; done"
    for arguments in (["exec", demo, "--", loop], ["ws", "list"], ["ws", "list", "--json"]):
        reader, writer = os.pipe()
        process = subprocess.Popen(
            [*CODEHUB, *arguments], env=cli.environment, stdout=writer, stderr=subprocess.PIPE
        )
        os.close(writer)
        if arguments[0] == "exec":
            assert os.read(reader, 2) == b"y\n"
        os.close(reader)
        _, errors = process.communicate(timeout=PATIENCE)
        assert (process.returncode, errors) == (141, b""), arguments
    workspace = cli.client.workspaces.find(demo)
    [command] = [each for each in workspace.execs() if loop in (each.info.command or ())]
    assert command.wait(PATIENCE) == 128 + signal.SIGPIPE


def test_signals_reach_the_command(cli: Cli, demo: str) -> None:
    script = "trap 'echo caught; exit 9' INT; echo ready; while :; do sleep 0.1; done"
    process = subprocess.Popen(
        [*CODEHUB, "exec", demo, "--", script],
        env=cli.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, output, errors) == (9, b"caught\n", b"")


def test_three_interrupts_leave_a_command_that_ignores_them(cli: Cli, demo: str) -> None:
    script = "trap 'echo no' INT; echo ready; while :; do sleep 0.1; done"
    process = subprocess.Popen(
        [*CODEHUB, "exec", demo, "--", script],
        env=cli.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == b"no\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130 and b"goes on" in errors


def test_output_goes_on_after_the_gateway_was_killed(cli: Cli, demo: str) -> None:
    script = "for n in $(seq 5000); do echo $n; done; read go; echo end"
    process = subprocess.Popen(
        [*CODEHUB, "exec", "-i", demo, "--", script], env=cli.environment, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None and process.stdin is not None
    lines = [process.stdout.readline() for _ in range(5000)]
    kill_parts(cli.system, ("gateway", "access"))
    wait_for(lambda: cli.client.session(), "the system to answer")
    workspace = cli.client.workspaces.find(demo)
    wait_for(lambda: workspace.execs(), "the access part to answer")
    process.stdin.write(b"go\n")
    process.stdin.close()
    assert b"".join(lines) + process.stdout.read() == b"".join(b"%d\n" % n for n in range(1, 5001)) + b"end\n"
    assert process.wait(PATIENCE) == 0


def test_a_terminal_survives_a_resize_and_a_restart_of_the_gateway(cli: Cli, demo: str) -> None:
    with cli.in_terminal("exec", "-it", demo, "--", "bash", "--norc") as terminal:
        at = terminal.expect("$ ")
        assert terminal.is_raw()
        terminal.type("stty size\n")
        at = terminal.expect("24 80", at)
        terminal.resize(40, 100)
        terminal.type("while [ \"$(stty size)\" != '40 100' ]; do sleep 0.05; done; echo re''sized\n")
        at = terminal.expect("resized", at)

        terminal.type("sleep 1000\n")
        at = terminal.expect("sleep 1000\r\n", at)
        terminal.type("\x03")
        at = terminal.expect("^C", at)
        terminal.type("echo inter''rupted $?\n")
        at = terminal.expect("interrupted 130", at)

        kill_parts(cli.system, ("gateway",))
        at = terminal.expect("\x1b[2J", at)
        at = terminal.expect("interrupted 130", at)
        terminal.type("stty size; echo al''ive; exit 5\n")
        at = terminal.expect("40 100", at)
        terminal.expect("alive", at)
        assert terminal.wait() == 5
        assert not terminal.is_raw()


def test_a_shell_is_left_with_an_escape_and_goes_on(cli: Cli, demo: str) -> None:
    with cli.in_terminal("shell", demo) as terminal:
        terminal.type("echo re''ady\n")
        terminal.expect("ready")
        terminal.type("\n~.")
        assert terminal.wait() == 130
    assert b"goes on" in terminal.shown
    [command] = cli.client.workspaces.find(demo).execs()
    assert command.state == "running"
    command.delete()
    with cli.in_terminal("shell", demo) as terminal:
        terminal.type("exit 3\n")
        assert terminal.wait() == 3


def test_a_port_is_forwarded(cli: Cli, demo: str) -> None:
    workspace = cli.client.workspaces.find(demo)
    command = workspace.exec(
        "cd /tmp && echo page > index.html && exec python3 -m http.server 3000 --bind 127.0.0.1"
    )
    with cli.in_terminal("port-forward", demo, "3000:0") as terminal:
        terminal.expect("forwarding 127.0.0.1:")
        terminal.expect(" to port 3000 of demo")
        [port] = re.findall(rb"127\.0\.0\.1:(\d+) ", terminal.shown)

        def answers() -> bool:
            with contextlib.suppress(httpx.TransportError):
                return httpx.get(f"http://127.0.0.1:{port.decode()}/index.html").text == "page\n"
            return False

        wait_for(answers, "the app to answer")
        terminal.type("\x03")
        assert terminal.wait() == 130
    command.delete()


def test_files_are_copied_both_ways(cli: Cli, demo: str) -> None:
    source = cli.directory / "project"
    (source / "sub").mkdir(parents=True)
    (source / "sub" / "a:b").write_bytes(os.urandom(100_000))
    cli("cp", "project", f"{demo}:project")
    cli("cp", f"{demo}:project", "back")
    assert (cli.directory / "back" / "sub" / "a:b").read_bytes() == (source / "sub" / "a:b").read_bytes()
    cli("cp", "./project/sub/a:b", f"{demo}:")
    with cli.in_terminal("cp", f"{demo}:a:b", str(cli.directory / "copy")) as terminal:
        terminal.expect("kB")
        assert terminal.wait() == 0
    assert (cli.directory / "copy").read_bytes() == (source / "sub" / "a:b").read_bytes()
    cli("cp", "missing", f"{demo}:", code=1)
    cli("cp", f"{demo}:missing", "x", code=4)
    assert b"one of both" in cli("cp", "a", "b", code=2).stderr


def test_a_shell_completes_names_of_workspaces(cli: Cli, demo: str) -> None:
    words = {"_CODEHUB_COMPLETE": "complete_bash", "COMP_WORDS": "codehub ws start de", "COMP_CWORD": "3"}
    done = subprocess.run(
        ["codehub"], executable=Path(sys.executable).with_name("codehub"), env=cli.environment | words,
        capture_output=True, check=False, timeout=PATIENCE,
    )  # fmt: skip
    assert done.stdout.split() == [b"demo"], done


def scripts(name: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (DOCS / name).read_text(), re.S)


def test_every_command_of_the_documentation_runs(cli: Cli, token: str) -> None:
    """As one script, with the test's system in place of the example."""
    (cli.directory / "project").mkdir()
    for file, content in (
        ("notes.txt", "notes"),
        ("project/file", "x"),
        ("password", cli.system.admin_password),
    ):
        (cli.directory / file).write_text(content)
    with contextlib.closing(cli.system.client()) as api:
        body = {"name": "docs", "scopes": ["read", "manage", "use", "admin"]}
        (cli.directory / "token").write_text(api.post("/api/v1/tokens", json=body).json()["token"])
    script = "\n".join(scripts("cli.md", "sh"))
    assert script.count("codehub ") > 30
    script = re.sub(r"^pip install.*$", "", script, flags=re.M)
    script = script.replace("https://codehub.example.org", cli.system.base_url)
    script = script.replace("codehub.example.org", cli.system.base_url.removeprefix("http://"))
    # A delete ends when the workspace is archived. Until then, an undelete answers with exit code 5.
    script = script.replace("codehub ws undelete demo", "until codehub ws undelete demo; do sleep 0.2; done")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-eux", "-c", script], env=cli.environment | {"PATH": path}, cwd=cli.directory,
        capture_output=True, stdin=subprocess.DEVNULL, check=False, timeout=2 * PATIENCE,
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout.decode(), done.stderr.decode())
    assert (cli.directory / "copy.txt").read_text() == "notes"
    for command in re.findall(r"^\$ codehub (.*)$", "\n".join(scripts("cli.md", "console")), re.M):
        forwards = command.startswith("port-forward ")
        with cli.in_terminal(*command.replace(":8080", ":0").split()) as terminal:
            if forwards:
                terminal.expect("forwarding")
            terminal.type("\x03" if forwards else "exit 6\n")
            assert terminal.wait() == (130 if forwards else 6)
    demo = cli.client.workspaces.find("demo")
    wait_for(lambda: is_deleted(demo), "the workspace to be deleted")


def test_every_example_of_the_sdk_runs(cli: Cli, token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other, in one process."""
    program = "\n".join(scripts("sdk.md", "python"))
    with contextlib.closing(cli.system.client()) as api:
        body = {"name": "sdk docs", "scopes": ["read", "manage", "use", "admin"]}
        admin = api.post("/api/v1/tokens", json=body).json()["token"]
    (cli.directory / "program.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=cli.directory, capture_output=True, check=False,
        timeout=2 * PATIENCE,
        env=cli.environment
        | {"CODEHUB_URL": cli.system.base_url, "CODEHUB_TOKEN": admin, "PASSWORD": cli.system.admin_password},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    assert b"hello from" in done.stdout and b"143" in done.stdout
    [build] = [each for each in cli.client.workspaces.list(trash=True) if each.name == "build"]
    wait_for(lambda: is_deleted(build), "the workspace to be deleted")
