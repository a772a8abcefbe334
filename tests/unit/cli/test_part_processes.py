"""The parts of `codehub up` are forked from one process, and share no state."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = '''
import asyncio, json, os, random, signal, sys
from pathlib import Path
from codehub.cli import part_processes

state = {"earlier": 0}

def describe():
    """Print what this part sees of its surroundings, and change what a later part must not see."""
    facts = {
        "environment": dict(os.environ), "cwd": os.getcwd(), "earlier": state["earlier"],
        "session": os.getsid(0) == os.getpid(), "random": random.random(),
        "descriptors": [fd for fd in range(3, 64) if is_open(fd)],
        "threads": len(os.listdir("/proc/self/task")),
        "title": Path("/proc/self/cmdline").read_bytes().rstrip(b"\\0").decode().split("\\0"),
    }
    state["earlier"] += 1
    print(json.dumps(facts))

def is_open(fd):
    try:
        os.fstat(fd)
        return True
    except OSError:
        return False

def wait():
    print("waiting", flush=True)
    signal.pause()

def fail():
    sys.stderr.write("the reason\\n")
    raise ValueError("a bug of the part")

part_processes.load_all = lambda docker: {"describe": describe, "wait": wait, "fail": fail}
server = part_processes.PartForkServer.fork(Path(sys.argv[1]), docker=False)
log = Path(sys.argv[1], "part.log")

async def logged(text):
    while not log.exists() or text not in log.read_text():
        await asyncio.sleep(0.01)

async def main():
    BODY

try:
    asyncio.run(main())
finally:
    server.stop()
    assert server.process.poll() is not None
'''


def run(body: str, logs: Path) -> object:
    """Run a supervisor's code against a fork server; return what it prints as JSON."""
    program = PROGRAM.replace("    BODY", "\n".join(f"    {line}" for line in body.splitlines()))
    done = subprocess.run(
        [sys.executable, "-c", program, str(logs)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout) if done.stdout else None


def test_a_part_has_its_own_environment_session_and_title_and_nothing_of_its_predecessor(
    tmp_path: Path,
) -> None:
    first, second = run(
        "answers = [await server.run_program('describe', {'NAME': 'value'}) for _ in range(2)]\n"
        "assert [code for code, _ in answers] == [0, 0]\n"
        "print(json.dumps([json.loads(answer) for _, answer in answers]))",
        tmp_path,
    )
    assert first.pop("random") != second.pop("random")
    assert first == second
    assert first == {
        "environment": {"NAME": "value"},
        "cwd": "/",
        "earlier": 0,
        "session": True,
        "descriptors": [],
        "threads": 1,
        "title": ["codehub", "describe"],
    }


def test_a_part_that_fails_leaves_its_reason_in_its_log(tmp_path: Path) -> None:
    code = run(
        "part = await server.start_part('fail', {}, log)\nprint(await asyncio.to_thread(part.wait))", tmp_path
    )
    assert code == 1
    written = (tmp_path / "part.log").read_text()
    assert "the reason" in written
    assert "ValueError: a bug of the part" in written


def test_a_part_ends_by_the_signal_it_is_sent(tmp_path: Path) -> None:
    code = run(
        "part = await server.start_part('wait', {}, log)\n"
        "await logged('waiting')\n"
        "assert part.poll() is None\n"
        "part.send_signal(signal.SIGKILL)\n"
        "print(await asyncio.to_thread(part.wait))",
        tmp_path,
    )
    assert code == -9


def test_a_fork_server_that_is_killed_takes_its_parts_along_and_is_replaced(tmp_path: Path) -> None:
    """The replacement is a new program with the real parts.

    The API reports its missing settings.
    """
    code, answer = run(
        "part = await server.start_part('wait', {}, log)\n"
        "await logged('waiting')\n"
        "server.process.send_signal(signal.SIGKILL)\n"
        "code = await asyncio.to_thread(part.wait)\n"
        "await asyncio.to_thread(server.process.wait)\n"
        "await server.start()\n"
        "api = await server.start_part('api', {}, log)\n"
        "assert await asyncio.to_thread(api.wait) == 1\n"
        "print(json.dumps([code, log.read_text()]))",
        tmp_path,
    )
    assert code == -15
    assert "DATABASE_URL and REDIS_URL must be set" in answer


@pytest.mark.parametrize("docker", [False, True])
def test_a_process_that_has_loaded_every_part_has_one_thread_and_no_descriptor(docker: bool) -> None:
    """Threads do not survive a fork, and neither do connections and event loops."""
    program = (
        "import os; from codehub.cli.part_main import load_all;"
        f"load_all(docker={docker});"
        "print(len(os.listdir('/proc/self/task')), sorted(map(int, os.listdir('/proc/self/fd')))[:-1])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1 [0, 1, 2]"
