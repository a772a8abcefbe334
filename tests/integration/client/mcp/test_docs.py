"""What docs/mcp.md says."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from codehub.client import Client, Workspace
from codehub.mcp import command_tools, file_tools, output, texts, workspace_tools
from tests.mcp_agent import connected
from tests.services import System
from tests.waiting import PATIENCE

DOC = Path(__file__).parents[4] / "docs" / "mcp.md"


RECORDER = """#!/bin/sh
for each in "$@"; do printf '%s\\n' "$each"; done > recorded
"""


async def test_the_documented_command_gives_an_agent_a_workspace(
    system: System, token: str, demo: Workspace, tmp_path: Path
) -> None:
    """With a program in place of `claude` that records how it was called."""
    [install, command] = re.findall(r"```sh\n(.*?)```", DOC.read_text(), re.S)
    assert install == "pip install 'codehub[mcp]'\n"
    (tmp_path / "claude").write_text(RECORDER)
    (tmp_path / "claude").chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "CODEHUB_URL": system.base_url, "CODEHUB_TOKEN": token,
    }  # fmt: skip
    done = subprocess.run(
        ["sh", "-euc", command.replace("https://codehub.example.org", system.base_url)], env=environment,
        input=f"{system.admin_password}\n".encode(), cwd=tmp_path, check=False, capture_output=True,
        timeout=PATIENCE,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    arguments = (tmp_path / "recorded").read_text().splitlines()
    at = arguments.index("--")
    given = dict(each.split("=", 1) for each in arguments[:at] if "=" in each)
    assert given.keys() == {"CODEHUB_URL", "CODEHUB_TOKEN"} and arguments[at + 1 :] == ["codehub", "mcp"]
    with Client(system.base_url, given["CODEHUB_TOKEN"]) as client:
        made = client.session().token
    assert made is not None and made.expires_at is not None
    assert (set(made.scopes), made.workspaces) == ({"read", "use"}, (demo.id,))
    async with connected(system, given["CODEHUB_TOKEN"]) as agent:
        assert "hello" in await agent("run_command", command="echo hello")
    subprocess.run(
        ["codehub", "tokens", "revoke", "agent"], env=environment, check=True, timeout=PATIENCE,
        input=f"{system.admin_password}\n".encode(), executable=Path(sys.executable).with_name("codehub"),
    )  # fmt: skip


async def test_the_documented_configuration_starts_it(system: System, token: str, demo: Workspace) -> None:
    [text] = re.findall(r"```json\n(.*?)```", DOC.read_text(), re.S)
    settings = json.loads(text)["mcpServers"]["codehub"]
    assert settings["command"] == "codehub" and settings["env"].keys() == {"CODEHUB_URL", "CODEHUB_TOKEN"}
    async with connected(system, token, *settings["args"][1:]) as agent:
        assert "demo" in await agent("get_workspace")


async def test_the_documentation_names_every_tool_and_limit(system: System, token: str) -> None:
    text = DOC.read_text()
    async with connected(system, token) as agent:
        assert [
            each.name for each in (await agent.client.list_tools()).tools if f"`{each.name}`" not in text
        ] == []
    limits = (
        output.MOST_BYTES, texts.MOST_BYTES, texts.MOST_LINE_BYTES, file_tools.LISTED, file_tools.MATCHES,
        command_tools.LISTED, workspace_tools.LISTED, workspace_tools.MOST_LOG_BYTES,
    )  # fmt: skip
    assert [each for each in limits if f"{each:,}" not in text] == []
    assert f"{file_tools.MOST_EDITED >> 20} MiB" in text
