"""Terminals with clients that do not read."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import replace
from typing import Any, cast

import pytest
from starlette.types import Message

from codehub.access import websockets
from codehub.access.services import AccessServices
from codehub.clock import utc_now
from codehub.database import exec_gate
from codehub.database.exec_gate import ExecActor, NewExec
from codehub.domain.execs import ExecState as RowState
from codehub.runtimes.command_runtime import CommandRuntime, CommandStatus, ExecState, OutputPiece
from tests.integration.access.test_authorization import EXEC, Fixture, fixture
from tests.waiting import PATIENCE, until

__all__ = ["fixture"]


class Shell:
    """A command that writes a line and records its input."""

    def __init__(self) -> None:
        self.input: list[bytes] = []

    async def find_command(self, _workspace_id: str, _exec_id: str) -> CommandStatus:
        return CommandStatus(ExecState.RUNNING, 0.0, None, None, None, 0, 5, 0)

    async def read_output(self, *_: object) -> OutputPiece:
        return OutputPiece(0, b"line\n")

    async def follow_output(self, *_: object) -> AsyncGenerator[OutputPiece, None]:
        await asyncio.Event().wait()
        yield OutputPiece(5, b"")

    async def send_input(
        self, _workspace_id: str, _exec_id: str, chunks: AsyncIterator[bytes], *, close: bool
    ) -> None:
        assert not close
        async for chunk in chunks:
            self.input.append(chunk)


class Client:
    """A client of a terminal. If it does not read, sending to it blocks."""

    def __init__(self, fixture: Fixture, exec_id: str, *, reads: bool) -> None:
        self.received: list[Any] = []
        self.is_sent_to = False
        self._reads = reads
        self._sends: asyncio.Queue[Message] = asyncio.Queue()
        self._sends.put_nowait({"type": "websocket.connect"})
        path = EXEC.format(workspace_id=fixture.workspace_id, exec_id=exec_id)
        scope = {
            "type": "websocket", "asgi": {"version": "3.0"}, "scheme": "ws", "query_string": b"",
            "path": f"{path}/attach",
            "headers": [(b"cookie", fixture.cookie("owner")["Cookie"].encode())], "subprotocols": [],
        }  # fmt: skip
        self.call = asyncio.ensure_future(fixture.app(scope, self._sends.get, self._send))

    async def _send(self, message: Any) -> None:
        if message["type"] == "websocket.accept":
            return
        self.is_sent_to = True
        if not self._reads:
            await asyncio.Event().wait()
        text = message.get("text")
        self.received.append(message.get("bytes") if text is None else json.loads(text))

    def send(self, data: bytes) -> None:
        self._sends.put_nowait({"type": "websocket.receive", "bytes": data})


async def start(fixture: Fixture) -> tuple[str, Shell]:
    """Return the id of a command with a terminal."""
    await fixture.api.set(fixture.workspace_id, phase="RUNNING", desired_state="RUNNING")
    services: AccessServices = fixture.app.state.services
    owner = ExecActor(fixture.api.ids["owner"], "owner", is_person=True)
    new, now = NewExec(fixture.workspace_id, ["sh"], "", True, None, None, None), utc_now()
    async with services.engine.begin() as conn:
        row, _ = await exec_gate.insert_exec(conn, new, owner, max_alive=9, output_bytes=9, now=now)
        await exec_gate.save_refreshed(conn, row, {"state": RowState.RUNNING, "started_at": now}, now=now)
    shell = Shell()
    fixture.app.state.services = replace(services, commands=cast(CommandRuntime, shell))
    return row.id, shell


async def test_a_client_that_does_not_read_does_not_block_the_next_writer(
    fixture: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websockets, "CLOSE_SECONDS", 0.1)
    exec_id, shell = await start(fixture)
    gone = Client(fixture, exec_id, reads=False)
    await until(lambda: gone.is_sent_to, "the first client to block")
    client = Client(fixture, exec_id, reads=True)
    await until(lambda: client.received == [{"writer": True}, b"line\n"], "the second client to write")
    gone.send(b"old")
    client.send(b"new")
    await until(lambda: shell.input, "the input")
    assert shell.input == [b"new"]

    fixture.app.state.services.readers.end_all()
    await asyncio.wait_for(asyncio.gather(gone.call, client.call), PATIENCE)
    assert not fixture.app.state.services.terminal_writers
