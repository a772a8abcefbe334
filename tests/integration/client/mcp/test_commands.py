"""Commands of an agent, on a whole system."""

import asyncio
import contextlib
import re
import subprocess

import pytest

from codehub.client import Workspace
from codehub.mcp import output
from tests.integration.client.conftest import KEPT_BYTES
from tests.integration.client.test_commands import kill_parts
from tests.mcp_agent import command_id, connected
from tests.services import System
from tests.waiting import PATIENCE, eventually, until, wait_for

pytestmark = pytest.mark.sampled(4, "test_")


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


async def test_output_that_is_no_longer_kept_is_named(system: System, token: str, demo: Workspace) -> None:
    async with connected(system, token, "-w", demo.id) as agent:
        done = await agent(
            "run_command", command=f"head -c {3 * KEPT_BYTES} /dev/zero | tr '\\0' x", wait_seconds=120
        )
        part = await agent("read_output", command_id=command_id(done))
        assert re.search(r"Bytes 0 to \d+ are no longer kept\.", part)


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


async def test_what_was_started_goes_on_when_the_agent_ends(
    system: System, token: str, demo: Workspace
) -> None:
    async with connected(system, token, "-w", demo.id) as agent:
        started = command_id(
            await agent("start_command", command="until [ -e go ]; do sleep 0.1; done; exit 5")
        )
    assert demo.get_exec(started).state == "running"
    demo.files.write("go", "")
    assert demo.get_exec(started).wait(PATIENCE) == 5
