"""Runner for rows of the conformance table, on a real gateway."""

import asyncio
import contextlib
from dataclasses import dataclass

import h11

from tests.integration.gateway.conformance.case import (
    HARMLESS,
    OK,
    AfterResponse,
    Case,
    ClientAction,
    ClientReceived,
    End,
    Step,
    UpstreamReceived,
    UpstreamResponse,
)
from tests.integration.gateway.harness import MINE, SESSION, Client, Upstream, World, without_policy
from tests.waiting import PATIENCE, until

PROBE = HARMLESS.replace(b"/harmless", b"/probe")
PROBED = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nprobed"
_FIXED_RESPONSES = {b"/harmless": OK, b"/probe": PROBED}
POLL_INTERVAL = 0.0005
"""Seconds. It is short, because the table waits some thousand times."""


class RecordingUpstream:
    """Upstream that records every byte, and parses requests with h11 instead of llhttp."""

    def __init__(self, upstream: Upstream, response: bytes | UpstreamResponse) -> None:
        self.upstream = upstream
        self.received = b""
        self.problems: list[str] = []
        self._response = response if isinstance(response, UpstreamResponse) else UpstreamResponse(response)
        upstream.script = self.serve

    async def serve(self, _: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._serve(reader, writer)
        except h11.RemoteProtocolError as error:
            self.problems.append(f"h11 rejects the forwarded request: {error}")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        left = b""
        while True:
            parser = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
            if left:
                parser.receive_data(left)
            request = await self._next(parser, reader, h11.Request)
            response = (
                UpstreamResponse(_FIXED_RESPONSES[path])
                if (path := _path(request)) in _FIXED_RESPONSES
                else self._response
            )
            writer.write(response.early)
            await self._next(parser, reader, h11.EndOfMessage)
            writer.write(response.data)
            if response.then is AfterResponse.CLOSE:
                return
            if response.then is AfterResponse.HALF_CLOSE:
                writer.write_eof()
            left = parser.trailing_data[0]
            if response.data.startswith(b"HTTP/1.1 101 "):
                await self._tunnel(reader)

    async def _next(self, parser: h11.Connection, reader: asyncio.StreamReader, kind: type) -> object:
        while not isinstance(event := parser.next_event(), kind):
            if event is h11.NEED_DATA:
                parser.receive_data(await self._read(reader))
            assert event is not h11.PAUSED
        return event

    async def _tunnel(self, reader: asyncio.StreamReader) -> None:
        while True:
            await self._read(reader)

    async def _read(self, reader: asyncio.StreamReader) -> bytes:
        data = await reader.read(65536)
        if not data:
            raise ConnectionResetError("the gateway closed the connection")
        self.received += data
        return data


def _path(request: object) -> bytes:
    assert isinstance(request, h11.Request)
    return request.target


@dataclass
class Outcome:
    """Everything that the two upstreams and the client received."""

    received: bytes
    """The bytes that the upstream received."""
    returned: bytes
    """The bytes that the client received."""
    probe_answered: bool
    """Whether the probe after the case got its response."""
    received_elsewhere: bytes
    """The bytes that the other upstream received."""
    problems: list[str]


class CaseRunner:
    """Runs cases on one gateway, and fills in their placeholders."""

    def __init__(self, world: World, *, path_mode: bool) -> None:
        self.world = world
        base, cookie = (f"/w/{MINE}", f"session={SESSION}") if path_mode else ("", world.cookie())
        self._values = {"host": world.host, "base": base, "cookie": cookie, "platform": world.platform}

    def fill(self, data: bytes) -> bytes:
        for name, value in self._values.items():
            data = data.replace(b"{%b}" % name.encode(), value.encode())
        return data

    async def warm_up(self) -> None:
        """Fill the route cache, so that the gateway decides each case without a lookup."""
        RecordingUpstream(self.world.ide, OK)
        await self.world.ask(self.fill(HARMLESS))

    async def run(self, case: Case, before: bytes = b"", times: int = 1) -> Outcome:
        world = self.world
        for upstream in (world.ide, world.api):
            world.gateway.pool.drop(upstream.address)
        expected, unexpected = (world.api, world.ide) if case.to_api else (world.ide, world.api)
        recorder, other_recorder = (
            RecordingUpstream(expected, case.response),
            RecordingUpstream(unexpected, OK),
        )
        client = await world.connect()
        case_client = _CaseClient(self, client, recorder)
        try:
            for step in (before, *case.steps * times):
                await case_client.perform(step)
            await case_client.finish(case.end)
        finally:
            client.writer.transport.abort()
        await self._wait_until_idle()
        return Outcome(
            recorder.received,
            case_client.received,
            case_client.probe_answered,
            other_recorder.received,
            recorder.problems,
        )

    async def _wait_until_idle(self) -> None:
        """Wait until every upstream connection is either closed or idle in the pool."""
        gateway = self.world.gateway
        await until(
            lambda: not gateway._connections, "the gateway to close the client's connection", POLL_INTERVAL
        )
        idle = gateway.pool._idle
        await until(
            lambda: self._open() == sum(map(len, idle.values())),
            "the upstream connections to be idle",
            POLL_INTERVAL,
        )

    def _open(self) -> int:
        return self.world.ide.open + self.world.api.open


class _CaseClient:
    """Client that performs the steps of one case."""

    def __init__(self, runner: CaseRunner, client: Client, recorder: RecordingUpstream) -> None:
        self.received = b""
        self.probe_answered = False
        self._runner = runner
        self._client = client
        self._recorder = recorder

    async def perform(self, step: Step) -> None:
        if isinstance(step, UpstreamReceived):
            wanted = self._runner.fill(step.data)
            await until(
                lambda: wanted in self._recorder.received,
                f"the upstream to receive {wanted!r}",
                POLL_INTERVAL,
            )
        elif isinstance(step, ClientReceived):
            await self._read_until(step.data)
        elif step is ClientAction.HALF_CLOSE:
            self._client.writer.write_eof()
        elif step is ClientAction.ABORT:
            self._client.writer.transport.abort()
        else:
            assert isinstance(step, bytes)
            self._client.send(self._runner.fill(step))

    async def finish(self, end: End) -> None:
        if end is End.CLIENT_CLOSED:
            return
        if end is End.OPEN:
            self._client.send(self._runner.fill(PROBE))
            await self._read_until(PROBED)
            self.probe_answered = self.received.endswith(PROBED)
            self.received = self.received.removesuffix(PROBED)
        else:
            self.received = without_policy(self.received + await self._client.rest())

    async def _read_until(self, data: bytes) -> None:
        with contextlib.suppress(ConnectionError):
            while data not in self.received:
                piece = await asyncio.wait_for(self._client.reader.read(65536), PATIENCE)
                if not piece:
                    return
                self.received = without_policy(self.received + piece)
