"""`codehub mcp` on a whole system, with the client of the official SDK over stdio."""

import asyncio
import contextlib
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client as McpClient
from mcp import StdioServerParameters

from codehub.client import Client, NotFound, Workspace
from codehub.mcp import file_tools, output, texts
from tests.integration.client.conftest import KEPT_BYTES, is_deleted
from tests.integration.client.test_commands import kill_parts
from tests.services import System
from tests.waiting import PATIENCE, eventually, until, wait_for

EVERY_TOOL = {
    "create_workspace", "edit_file", "get_port_url", "get_workspace", "kill_command", "list_commands",
    "list_files", "list_workspaces", "read_file", "read_logs", "read_output", "run_command", "search_files",
    "start_command", "start_workspace", "stop_workspace", "wait_command", "write_file",
}  # fmt: skip


@dataclass
class Agent:
    """Client of `codehub mcp`."""

    client: McpClient
    progress: list[str] = field(default_factory=list)

    async def __call__(self, tool: str, **arguments: Any) -> str:
        is_error, text = await self.call(tool, **arguments)
        assert not is_error, text
        return text

    async def failed(self, tool: str, **arguments: Any) -> str:
        is_error, text = await self.call(tool, **arguments)
        assert is_error, text
        assert "Traceback" not in text
        return text

    async def call(self, tool: str, **arguments: Any) -> tuple[bool, str]:
        result = await self.client.call_tool(tool, arguments, progress_callback=self._record)
        [content] = result.content
        assert content.type == "text"
        return bool(result.is_error), content.text

    async def _record(self, progress: float, total: float | None, message: str | None) -> None:
        self.progress.append(message or "")


@contextlib.asynccontextmanager
async def connected(system: System, token: str, *options: str) -> AsyncIterator[Agent]:
    environment = dict(os.environ) | {"CODEHUB_URL": system.base_url, "CODEHUB_TOKEN": token}
    parameters = StdioServerParameters(
        command=sys.executable, args=["-m", "codehub", "mcp", *options], env=environment
    )
    async with McpClient(parameters, read_timeout_seconds=PATIENCE) as client:
        yield Agent(client)


@pytest.fixture
def demo(system: System, token: str) -> Iterator[Workspace]:
    with Client(system.base_url, token, retry_seconds=PATIENCE) as client:
        made = client.workspaces.create("demo")
        made.wait_until("RUNNING", PATIENCE)
        yield made
        wait_for(lambda: is_deleted(made), "the workspace to be deleted")


@dataclass
class BoundToken:
    id: str
    secret: str


@pytest.fixture
def bound(system: System, demo: Workspace) -> Iterator[BoundToken]:
    """A token that reads and uses the workspace, and no other."""
    with Client.sign_in(system.base_url, system.admin_username, system.admin_password) as person:
        made = person.tokens.create("agent", ["read", "use"], workspaces=[demo.id], expires_in_days=1)
        yield BoundToken(made.id, made.token)
        with contextlib.suppress(NotFound):  # a test may have revoked it
            person.tokens.revoke(made.id)


def command_id(text: str) -> str:
    found = re.match(r"Command (\w{26}) ", text)
    assert found, text
    return found[1]


async def test_an_agent_takes_a_workspace_through_its_life(system: System, token: str) -> None:
    async with connected(system, token) as agent:
        tools = (await agent.client.list_tools()).tools
        assert {each.name for each in tools} == EVERY_TOOL
        assert all(each.description for each in tools)
        made = await agent("create_workspace", name="life", description="a test", wait_seconds=120)
        assert "phase: RUNNING" in made and "description: a test" in made
        assert agent.progress
        assert "life" in await agent("list_workspaces")
        assert "phase: STANDBY" in await agent("stop_workspace", workspace="life", wait_seconds=120)
        refused = await agent.failed("run_command", command="true", workspace="life")
        assert refused.startswith("INVALID_STATE: ") and "start_workspace" in refused
        woken = await agent("run_command", command="echo awake", workspace="life", wake=True)
        assert "awake" in woken
        assert "phase: STANDBY" in await agent("stop_workspace", workspace="life", wait_seconds=120)
        at_once = await agent("start_workspace", workspace="life", wait_seconds=0)
        assert at_once.startswith("It is not RUNNING after 0 s. Call get_workspace")
        assert "phase: RUNNING" in await agent("start_workspace", workspace="life", wait_seconds=120)
        with Client(system.base_url, token) as client:
            life = client.workspaces.find("life")
            assert await agent("get_port_url", port=3000, workspace="life", path="a?b=c") == life.port_url(
                3000, "a?b=c"
            )
            wait_for(lambda: is_deleted(life), "the workspace to be deleted")
        gone = await agent.failed("get_workspace", workspace="life")
        assert gone.startswith("WORKSPACE_NOT_FOUND: ") and "list_workspaces" in gone


async def test_commands_run_with_progress_and_bounded_output(
    system: System, token: str, demo: Workspace
) -> None:
    async with connected(system, token, "--workspace", "demo") as agent:
        done = await agent(
            "run_command", command='cat; echo "$A" >&2; pwd; exit 7', stdin="in\n", env={"A": "b"}, cwd="/tmp"
        )
        assert "exited with code 7" in done
        assert "--- stdout: 8 bytes\nin\n/tmp\n" in done and "--- stderr: 2 bytes\nb\n" in done

        size = 5 * output.MOST_BYTES
        long = await agent("run_command", command=f"seq -w 1 {size // 10} | sed s/^/line-/; echo end")
        assert len(long) < output.MOST_BYTES + 500 and long.endswith("end\n")
        found = re.search(r"bytes (\d+) to (\d+) of (\d+)\. read_output", long)
        assert found
        start, end, total = map(int, found.groups())
        assert (end - start, end) == (output.MOST_BYTES, total)
        text, offset = "", 0
        while offset < total:
            part = await agent("read_output", command_id=command_id(long), offset=offset)
            head, _, rest = part.partition("\n")
            text += rest
            offset = int(re.search(r"to (\d+) of", head)[1])  # type: ignore[index]
        expected = subprocess.run(
            f"seq -w 1 {size // 10} | sed s/^/line-/; echo end", shell=True, capture_output=True, check=True
        )
        assert text == expected.stdout.decode()
        assert "nothing at offset" in await agent("read_output", command_id=command_id(long), offset=total)


async def test_output_is_sent_as_progress_while_the_command_runs(
    system: System, token: str, demo: Workspace
) -> None:
    async with connected(system, token, "-w", demo.id) as agent:
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(
                agent("run_command", command="echo first; until [ -e go ]; do sleep 0.1; done; echo last")
            )
            await until(lambda: "first\n" in "".join(agent.progress), "the first line as progress")
            assert not running.done()
            demo.files.write("go", "")
        assert "first\nlast\n" in running.result()


async def test_a_command_goes_on_behind_the_wait(system: System, token: str, demo: Workspace) -> None:
    async with connected(system, token, "-w", demo.id) as agent:
        script = "echo out; until [ -e go ]; do sleep 0.1; done; echo end; exit 3"
        running = await agent("run_command", command=script, wait_seconds=0)
        assert "is running" in running and "wait_command" in running
        started = command_id(running)
        assert started in await agent("list_commands")
        demo.files.write("go", "")
        done = await agent("wait_command", command_id=started, wait_seconds=120)
        assert "exited with code 3" in done and "out\nend\n" in done
        again = await agent("kill_command", command_id=started)
        assert again.startswith("It had ended before.")


async def test_commands_are_killed(system: System, token: str, demo: Workspace) -> None:
    async with connected(system, token, "-w", demo.id) as agent:
        stubborn = command_id(
            await agent("start_command", command="trap '' TERM; echo up; sleep 1000 & wait; wait")
        )
        await eventually(
            lambda: agent("read_output", command_id=stubborn), "the trap to be set", lambda text: "up" in text
        )
        assert "code 137" in await agent("kill_command", command_id=stubborn, signal="KILL")
        timed_out = await agent("run_command", command="sleep 1000", timeout_seconds=0.5, wait_seconds=120)
        assert "was killed (Timeout)" in timed_out

        call = asyncio.create_task(agent("run_command", command="echo up; sleep 1000", wait_seconds=600))
        await until(lambda: "up" in "".join(agent.progress), "the command to run")
        [command] = [each for each in demo.execs() if each.state == "running"]
        call.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await call
        await until(lambda: command.id not in [each.id for each in demo.execs()], "the command to be killed")
        missing = await agent.failed("wait_command", command_id=command.id)
        assert missing.startswith("NOT_FOUND: ")


async def test_files_are_read_and_changed(system: System, token: str, demo: Workspace) -> None:
    async with connected(system, token, "-w", demo.id) as agent:
        lines = [f"line {n}\n" for n in range(1, 10_001)]
        wrote = await agent("write_file", path="new/deep/file.txt", content="".join(lines))
        assert "Wrote new/deep/file.txt" in wrote
        text, first = "", 1
        while first:
            part = await agent("read_file", path="new/deep/file.txt", first_line=first, max_lines=2000)
            head, _, rest = part.partition("\n")
            assert len(rest) <= texts.MOST_BYTES + texts.MOST_LINE_BYTES
            text += rest
            more = re.search(r"first_line=(\d+)", head)
            first = int(more[1]) if more else 0
        assert text == "".join(lines)

        refused = await agent.failed("write_file", path="new/deep/file.txt", content="x")
        assert "exists" in refused and "read_file" in refused
        etag = re.search(r"etag (\S+)", wrote)[1]  # type: ignore[index]
        assert "8 bytes" in await agent(
            "write_file", path="new/deep/file.txt", content="a\nb\nb\n\u00e9", etag=etag, mode="755"
        )
        assert demo.files.stat("new/deep/file.txt").mode.endswith("755")
        stale = await agent.failed("write_file", path="new/deep/file.txt", content="y", etag=etag)
        assert stale.startswith("PRECONDITION_FAILED: ") and "read_file" in stale

        edit = {"path": "new/deep/file.txt", "old_text": "b\n", "new_text": "c\n"}
        assert "2 times" in await agent.failed("edit_file", **edit)
        assert "Replaced 2" in await agent("edit_file", **edit, replace_all=True)
        assert "not in the file" in await agent.failed("edit_file", **edit)
        demo.run("ln -s new/deep/file.txt link")
        assert "Replaced 1" in await agent("edit_file", path="link", old_text="\u00e9", new_text="e")
        assert demo.files.read("new/deep/file.txt") == b"a\nc\nc\ne"
        assert demo.files.stat("link").kind == "symlink"

        assert "deep" in await agent("list_files", path="new")
        assert "deep/file.txt" in await agent("list_files", path="new", depth=2)
        assert "file.txt:1: a" in await agent("search_files", query="a", path="new")
        assert "deep/file.txt" in await agent("search_files", query="FILE", path="new", where="names")
        demo.run("head -c 100 /dev/zero > zeros")
        assert "not a text file" in await agent.failed("read_file", path="zeros")
        assert "directory" in await agent.failed("read_file", path="new")
        assert (await agent.failed("read_file", path="missing")).startswith("NOT_FOUND: ")
        assert (await agent.failed("read_file", path="/etc/shadow")).startswith("FORBIDDEN: ")


async def test_lists_are_bounded_and_go_on(system: System, token: str, demo: Workspace) -> None:
    count = 2 * file_tools.LISTED + 5
    demo.run(f"mkdir many; cd many; for n in $(seq {count}); do echo needle > f$n; done")
    async with connected(system, token, "-w", demo.id) as agent:
        for tool, arguments, most in (
            ("list_files", {"path": "many"}, file_tools.LISTED),
            ("search_files", {"path": "many", "query": "needle"}, file_tools.MATCHES),
        ):
            seen: list[str] = []
            offset: int | None = 0
            while offset is not None:
                lines = (await agent(tool, **arguments, offset=offset)).splitlines()
                more = re.search(r"offset=(\d+)", lines[-1])
                offset = int(more[1]) if more else None
                found = lines[:-1] if more else lines
                assert len(found) <= most
                seen += [re.search(r"f\d+", each)[0] for each in found]  # type: ignore[index]
            assert sorted(seen) == sorted(f"f{n}" for n in range(1, count + 1))


async def test_output_that_is_no_longer_kept_is_named(system: System, token: str, demo: Workspace) -> None:
    async with connected(system, token, "-w", demo.id) as agent:
        done = await agent(
            "run_command", command=f"head -c {3 * KEPT_BYTES} /dev/zero | tr '\\0' x", wait_seconds=120
        )
        part = await agent("read_output", command_id=command_id(done))
        assert re.search(r"Bytes 0 to \d+ are no longer kept\.", part)


async def test_concurrent_edits_are_all_kept(system: System, token: str, demo: Workspace) -> None:
    """Two agents change different lines of one file at the same time."""
    count = 6
    demo.files.write("shared", "".join(f"todo {n}\n" for n in range(2 * count)))
    async with connected(system, token, "-w", demo.id) as one, connected(system, token, "-w", demo.id) as two:

        async def edit(agent: Agent, numbers: range) -> None:
            for n in numbers:
                await agent("edit_file", path="shared", old_text=f"todo {n}\n", new_text=f"done {n}\n")

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(edit(one, range(0, 2 * count, 2)))
            tasks.create_task(edit(two, range(1, 2 * count, 2)))
    assert demo.files.read("shared").decode() == "".join(f"done {n}\n" for n in range(2 * count))


async def test_a_bound_token_needs_no_name_until_it_is_revoked(
    system: System, token: str, demo: Workspace, bound: BoundToken
) -> None:
    other = Client(system.base_url, token).workspaces.create("other", desired_state="STANDBY")
    async with connected(system, bound.secret) as agent:
        assert "demo" in await agent("list_workspaces") and "other" not in await agent("list_workspaces")
        assert "hello" in await agent("run_command", command="echo hello")
        assert "only one" not in await agent("get_workspace")
        assert (await agent.failed("get_workspace", workspace=other.id)).startswith("FORBIDDEN: ")
        assert "manage" in await agent.failed("stop_workspace")
        following = asyncio.create_task(
            agent.call("run_command", command="echo up; sleep 1000", wait_seconds=600)
        )
        await until(lambda: "up" in "".join(agent.progress), "the command to run")
        with Client.sign_in(system.base_url, system.admin_username, system.admin_password) as person:
            person.tokens.revoke(bound.id)
            is_error, text = await following
            assert is_error and text.startswith("UNAUTHORIZED: ") and "another one" in text
            assert (await agent.failed("list_workspaces")).startswith("UNAUTHORIZED: ")
    wait_for(lambda: is_deleted(other), "the workspace to be deleted")


async def test_a_bound_server_has_one_workspace(system: System, token: str, demo: Workspace) -> None:
    other = Client(system.base_url, token).workspaces.create("other", desired_state="STANDBY")
    async with connected(system, token, "--workspace", "demo") as agent:
        tools = {each.name for each in (await agent.client.list_tools()).tools}
        assert tools == EVERY_TOOL - {"create_workspace"}
        assert "other" not in await agent("list_workspaces")
        for name in ("other", other.id):
            assert "Only the workspace 'demo'" in await agent.failed(
                "run_command", command="x", workspace=name
            )
        demo.update(name="renamed")
        assert "renamed" in await agent("get_workspace")
    async with connected(system, token) as agent:
        assert "2 workspaces: " in await agent.failed("get_workspace")
    wait_for(lambda: is_deleted(other), "the workspace to be deleted")


async def test_garbage_is_answered_and_does_no_harm(system: System, token: str, demo: Workspace) -> None:
    async with connected(system, token, "-w", demo.id) as agent:
        for tool, arguments, expected in (
            ("run_command", {}, "command: Field required"),
            ("run_command", {"command": ""}, "command: "),
            ("run_command", {"command": ["ls"]}, "command: "),
            ("run_command", {"command": "x", "wait_seconds": 10**9}, "wait_seconds: "),
            ("run_command", {"command": "x", "timeout": 1}, "no argument 'timeout'"),
            ("run_command", {"command": "a\0b"}, "VALIDATION_ERROR"),
            ("run_command", {"command": "x", "env": {"LD_PRELOAD": "x"}}, "VALIDATION_ERROR"),
            ("read_output", {"command_id": "../../x"}, "VALIDATION_ERROR"),
            ("read_output", {"command_id": ""}, "list_commands"),
            ("read_output", {"command_id": "x", "offset": -1}, "offset: "),
            ("wait_command", {"command_id": "0" * 26}, "NOT_FOUND"),
            ("read_file", {"path": "a\0b"}, "VALIDATION_ERROR"),
            ("write_file", {"path": "x", "content": "", "etag": "a\r\nX-Evil: 1"}, "etag: "),
            ("write_file", {"path": "x", "content": "", "mode": "rwx"}, "mode: "),
            ("edit_file", {"path": "x", "old_text": "", "new_text": ""}, ""),
            ("get_port_url", {"port": 0}, "port: "),
            ("list_files", {"depth": "deep"}, "depth: "),
            ("no_such_tool", {}, "Unknown tool"),
        ):  # fmt: skip
            assert expected in await agent.failed(tool, **arguments), (tool, arguments)
        assert "still here" in await agent("run_command", command="echo still here")


async def test_lines_that_are_no_messages_are_survived(system: System, token: str) -> None:
    process = await anyio.open_process(
        [sys.executable, "-m", "codehub", "mcp"],
        env=dict(os.environ) | {"CODEHUB_URL": system.base_url, "CODEHUB_TOKEN": token},
    )
    async with process:
        assert process.stdin is not None and process.stdout is not None
        await process.stdin.send(b'not json\n\xff\xfe\n{"jsonrpc": "2.0"}\n[]\n{"a": "\\ud800"}\n')
        await process.stdin.send(b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n')
        answer = b""
        with anyio.fail_after(PATIENCE):
            while b'"id":1' not in answer:
                answer += await process.stdout.receive()
            await process.stdin.aclose()
            assert await process.wait() == 0


@pytest.mark.parametrize("parts", [("gateway",), ("access", "gateway")], ids="-".join)
async def test_output_goes_on_after_the_server_died(
    system: System, token: str, demo: Workspace, parts: tuple[str, ...]
) -> None:
    async with connected(system, token, "-w", demo.id) as agent:
        script = "seq 1000; until [ -e go ]; do sleep 0.1; done; echo end; exit 4"
        call = asyncio.create_task(agent("run_command", command=script, wait_seconds=600))
        await until(lambda: "1000\n" in "".join(agent.progress), "the output")
        kill_parts(system, parts)
        await asyncio.to_thread(wait_for, lambda: wrote_go(demo), "the server to be back")
        done = await call
    assert "exited with code 4" in done
    assert done.endswith("\n" + "".join(f"{n}\n" for n in range(1, 1001)) + "end\n")


def wrote_go(workspace: Workspace) -> bool:
    from codehub.client import CodehubError

    with contextlib.suppress(CodehubError):
        workspace.files.write("go", "")
        return True
    return False


async def test_logs_are_bounded(system: System, token: str, demo: Workspace) -> None:
    async with connected(system, token, "-w", demo.id) as agent:
        logs = await agent("read_logs", lines=5)
        assert len(logs.splitlines()) <= 6
        assert await agent("read_logs", skip=1000) == "There are no such lines."


def test_without_credentials_it_says_so(tmp_path: Path) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CODEHUB_")}
    done = subprocess.run(
        [sys.executable, "-m", "codehub", "mcp"], capture_output=True, check=False, timeout=PATIENCE,
        env=kept | {"CODEHUB_CREDENTIALS_FILE": str(tmp_path / "none")}, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (3, b"")
    assert b"codehub login URL" in done.stderr
