"""The built-in image: code-server in a container of the process runtime."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress

import pytest

from codehub.domain.images import BUILT_IN
from codehub.runtimes.process.runtime import ProcessRuntime
from codehub.settings import Settings
from tests.integration.runtimes.conftest import RuntimeFixture
from tests.reachability import paths_below
from tests.waiting import PATIENCE

TOOLS = Settings().tools_dir
KILLED = 128 + signal.SIGKILL


@pytest.fixture
def with_code_server(fixture: RuntimeFixture) -> RuntimeFixture:
    if not (TOOLS / "bin" / "code-server").exists():
        pytest.skip(f"code-server is not installed in {TOOLS}: run codehub ide install")
    fixture.runtime = ProcessRuntime(fixture.data_dir / "runtime", TOOLS, stop_grace=PATIENCE)
    return fixture


async def get(socket: str, path: str) -> bytes:
    reader, writer = await asyncio.open_unix_connection(socket)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    return answer


async def test_code_server_serves_vs_code_from_its_home(with_code_server: RuntimeFixture) -> None:
    fixture = with_code_server
    spec = fixture.spec("w1", BUILT_IN[0])
    await fixture.runtime.start(spec)
    fact = await fixture.until("w1", lambda fact: fact.ready or not fact.running)
    assert fact.ready, fact.message
    assert fact.upstream is not None
    page = await get(fact.upstream.removeprefix("unix:"), "/?folder=/home/coder")
    assert page.startswith(b"HTTP/1.1 200") and b"workbench" in page
    written = set()
    for path in paths_below(spec.home)[1:]:
        with suppress(FileNotFoundError):  # it replaces some of them
            written.add(os.lstat(path).st_uid)
    assert written == {spec.uid}
    await fixture.runtime.stop("w1")
    fact, state = await fixture.runtime.status("w1"), fixture.directory("w1").read_state()
    assert fact.exists and not fact.running
    assert state is not None and state.ended is not None
    assert state.ended.code != KILLED, "code-server ends by SIGTERM, without SIGKILL"
