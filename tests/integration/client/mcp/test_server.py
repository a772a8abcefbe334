"""`codehub mcp` on a whole system, with the client of the official SDK over stdio."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import anyio

from codehub.client import Client, Workspace
from tests.integration.client.conftest import is_deleted
from tests.integration.client.mcp.conftest import BoundToken
from tests.mcp_agent import connected
from tests.services import System
from tests.waiting import PATIENCE, until, wait_for

EVERY_TOOL = {
    "create_workspace", "edit_file", "get_port_url", "get_workspace", "kill_command", "list_commands",
    "list_files", "list_workspaces", "read_file", "read_logs", "read_output", "run_command", "search_files",
    "start_command", "start_workspace", "stop_workspace", "wait_command", "write_file",
}  # fmt: skip


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
