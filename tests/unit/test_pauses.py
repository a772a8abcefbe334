"""Random pauses surround the chosen calls, in every process, and no others."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import pauses
from tests.services import Services

ROOT = Path(__file__).parents[2]
PAUSED_CALL = ["pause", "call", "pause"]
ALWAYS = """
import asyncio, json, sys
from tests import pauses

pauses.install("7", probability=1)
events = []

async def sleep(seconds, real=asyncio.sleep):
    events.append("pause" if 0 < seconds <= pauses.LONGEST else seconds)
    await real(0)

asyncio.sleep = sleep
"""
THREAD = """
asyncio.run(asyncio.to_thread(lambda: events.append("call")))
print(json.dumps(events))
"""
FIRST_STEP_IN_A_LOOP = """
import uvloop
from tests.simulation.clock import VirtualLoop

async def begin():
    call = asyncio.to_thread(lambda: None)
    call.send(None)  # up to the first wait: the simulation's loop cannot wait for a thread
    call.close()

loops = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop, "virtual": VirtualLoop}
loop = loops[sys.argv[1]]()
loop.run_until_complete(begin())
print(json.dumps(events))
"""
POSTGRES = """
import asyncpg

async def main():
    connection = await asyncpg.connect(sys.argv[1])
    events.clear()
    async with connection.transaction():
        events.append("begun")
        await connection.fetchval("SELECT 1")
        events.append("fetched")
    await connection.close()

asyncio.run(main())
print(json.dumps(events))
"""
SQLALCHEMY = """
from sqlalchemy import text
from codehub.database.engine import create_engine

async def main():
    engine = create_engine(sys.argv[1])
    async with engine.begin() as connection:
        await connection.execute(text("SELECT 1"))
        events.clear()
        await connection.execute(text("SELECT 2"))
        events.append("executed")
    await engine.dispose()

asyncio.run(main())
print(json.dumps(events))
"""
REDIS = """
from redis.asyncio import Redis

async def main():
    async with Redis.from_url(sys.argv[1]) as redis:
        await redis.ping()
        events.append("ping")
        async with redis.pipeline() as pipeline:
            pipeline.ping()
            events.append("added")
            await pipeline.execute()
            events.append("executed")
        async with redis.pubsub() as pubsub:
            await pubsub.subscribe("channel")

asyncio.run(main())
print(json.dumps(events))
"""
DOCKER = """
import aiodocker

ANSWER = b"HTTP/1.1 200 OK\\r\\nContent-Type: application/json\\r\\nContent-Length: 2\\r\\n\\r\\n{}"

async def answer(reader, writer):
    await reader.readuntil(b"\\r\\n\\r\\n")
    events.append("call")
    writer.write(ANSWER)
    await writer.drain()

async def main():
    path = sys.argv[1] + "/docker.sock"
    async with await asyncio.start_unix_server(answer, path), aiodocker.Docker("unix://" + path) as docker:
        docker.api_version = "v1.43"
        await docker.version()

asyncio.run(main())
print(json.dumps(events))
"""


def child(code: str, *arguments: object, **environment: str) -> Any:
    """Return the JSON that a Python process prints, which does not inherit pauses."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name not in (pauses.SWITCH, pauses.SEED, "PYTHONPATH")
    }
    ended = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=ROOT, env=inherited | environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


@pytest.fixture
def inherited(tmp_path: Path) -> dict[str, str]:
    """Environment of processes in a run with pauses."""
    (tmp_path / "sitecustomize.py").symlink_to(pauses.__file__)
    return {pauses.SWITCH: "1", pauses.SEED: "7", "PYTHONPATH": str(tmp_path)}


def test_a_call_in_a_thread_pauses_before_and_after() -> None:
    assert child(ALWAYS + THREAD) == PAUSED_CALL


@pytest.mark.parametrize(("loop", "events"), [("asyncio", ["pause"]), ("uvloop", ["pause"]), ("virtual", [])])
def test_real_time_has_pauses_and_simulated_time_has_none(loop: str, events: list[str]) -> None:
    assert child(ALWAYS + FIRST_STEP_IN_A_LOOP, loop) == events


def test_requests_to_postgresql_pause(services: Services) -> None:
    url = services.postgres.database_url("postgres")
    twice = ["pause", "pause"]
    assert child(ALWAYS + POSTGRES, url) == [*twice, "begun", *twice, "fetched", *twice]
    prepared_and_fetched, committed = twice + twice, twice
    assert child(ALWAYS + SQLALCHEMY, url) == [*prepared_and_fetched, "executed", *committed]


def test_requests_to_redis_pause(services: Services) -> None:
    twice = ["pause", "pause"]
    expected = [*twice, "ping", "added", *twice, "executed", *twice]
    assert child(ALWAYS + REDIS, services.redis.url) == expected


def test_requests_to_the_docker_engine_pause(tmp_path: Path) -> None:
    assert child(ALWAYS + DOCKER, tmp_path) == PAUSED_CALL


def test_a_process_gets_pauses_from_its_environment_when_it_imports_a_module(
    inherited: dict[str, str],
) -> None:
    code = """
import sys
before = [name for name in (*sys.argv[1:], "random", "functools") if name in sys.modules]
import json, asyncio, asyncpg, aiodocker, redis.asyncio
functions = [
    asyncio.to_thread, asyncpg.Connection.execute, asyncpg.prepared_stmt.PreparedStatement.fetch,
    redis.asyncio.Redis.execute_command, aiodocker.Docker._do_query,
]
print(json.dumps([before, [function.__code__.co_name == "paused" for function in functions]]))
"""
    loaded_before, paused = child(code, *pauses.PAUSED, **inherited)
    assert loaded_before == []
    assert paused == [True] * 5
    _, paused = child(code, *pauses.PAUSED, **inherited | {pauses.SWITCH: ""})
    assert not any(paused)


def test_a_storage_job_stays_light(inherited: dict[str, str]) -> None:
    code = "import json, sys, codehub.storage.jobs.program; print(json.dumps(sorted(sys.modules)))"
    assert not set(pauses.PAUSED) & set(child(code, **inherited))


def test_a_seed_repeats_the_pauses_and_a_fork_has_different_ones() -> None:
    code = """
import json, os, sys
from tests.pauses import Pauses, install

drawn = []
class Drawing(Pauses):
    def __init__(self, *given):
        super().__init__(*given)
        drawn.append(self)

sys.modules["tests.pauses"].Pauses = Drawing
install(sys.argv[1])

def draw():
    return [drawn[0].draw() for _ in range(50)]

def draw_in_fork():
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.write(writer, json.dumps(draw()).encode())
        os._exit(0)
    os.wait()
    return json.loads(os.read(reader, 65536))

print(json.dumps([draw(), draw_in_fork(), draw_in_fork()]))
"""
    first, again, other = child(code, "7"), child(code, "7"), child(code, "eight")
    assert first == again
    drawn = [json.dumps(sequence) for sequence in first + other]
    assert len(set(drawn)) == 6
    assert all(0 <= seconds <= pauses.LONGEST for sequence in first for seconds in sequence)
    assert all(0 < sum(map(bool, sequence)) < 25 for sequence in first)


def test_pytest_gives_pauses_to_its_children_and_prints_the_seed(tmp_path: Path) -> None:
    test = """
import asyncio, os, subprocess, sys

def test_pauses():
    assert asyncio.to_thread.__wrapped__
    command = [sys.executable, "-c", "import asyncio; asyncio.to_thread.__wrapped__"]
    subprocess.run(command, check=True)
    print("PATH OF CHILDREN", os.environ["PYTHONPATH"])
"""
    (tmp_path / "test_pauses.py").write_text(test)
    code = """
import json, subprocess, sys
command = [sys.executable, "-m", "pytest", "-p", "tests.pauses", "-p", "no:cacheprovider", "-s"]
ended = subprocess.run(
    [*command, "-c", "/dev/null", "--rootdir", sys.argv[1], sys.argv[1]], capture_output=True, text=True
)
print(json.dumps([ended.returncode, ended.stdout]))
"""
    exit_code, output = child(code, tmp_path, CODEHUB_PAUSES="1", CODEHUB_PAUSES_SEED="31")
    assert exit_code == 0, output
    assert "CODEHUB_PAUSES=1 CODEHUB_PAUSES_SEED=31 repeats them" in output
    directory = output.split("PATH OF CHILDREN ")[1].split()[0]
    assert not Path(directory).exists()
