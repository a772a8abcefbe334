"""Plays a row of the conformance table through a real gateway and says what happened."""

import asyncio
import contextlib
from dataclasses import dataclass

import h11

from tests.integration.gateway.conformance.case import (
    HARMLESS,
    OK,
    Act,
    Answer,
    Case,
    ClientGot,
    End,
    Step,
    Then,
    UpstreamSaw,
)
from tests.integration.gateway.harness import MINE, SESSION, Client, Upstream, World, without_policy
from tests.waiting import PATIENCE, until

PROBE = HARMLESS.replace(b"/harmless", b"/probe")
PROBED = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nprobed"
_OWN = {b"/harmless": OK, b"/probe": PROBED}
EVERY = 0.0005
"""Seconds between two looks: a table looks some thousand times."""


class Recorder:
    """Keeps every byte, and finds the end of each request with a parser that is not the gateway's."""

    def __init__(self, upstream: Upstream, answer: bytes | Answer) -> None:
        self.upstream = upstream
        self.seen = b""
        self.problems: list[str] = []
        self._answer = answer if isinstance(answer, Answer) else Answer(answer)
        upstream.script = self.serve

    async def serve(self, _: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._serve(reader, writer)
        except h11.RemoteProtocolError as error:
            self.problems.append(f"the upstream does not understand what came through: {error}")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        left = b""
        while True:
            parser = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
            if left:
                parser.receive_data(left)
            asked = await self._next(parser, reader, h11.Request)
            answer = Answer(_OWN[path]) if (path := _path(asked)) in _OWN else self._answer
            writer.write(answer.early)
            await self._next(parser, reader, h11.EndOfMessage)
            writer.write(answer.data)
            if answer.then is Then.CLOSE:
                return
            if answer.then is Then.HALF_CLOSE:
                writer.write_eof()
            left = parser.trailing_data[0]
            if answer.data.startswith(b"HTTP/1.1 101 "):
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
            raise ConnectionResetError("the gateway closed")
        self.seen += data
        return data


def _path(asked: object) -> bytes:
    assert isinstance(asked, h11.Request)
    return asked.target


@dataclass
class Outcome:
    seen: bytes
    got: bytes
    probed: bool
    """The probe after it was answered."""
    elsewhere: bytes
    """What the other upstream saw."""
    problems: list[str]


class Stage:
    def __init__(self, world: World, *, path_mode: bool) -> None:
        self.world = world
        base, who = (f"/w/{MINE}", f"session={SESSION}") if path_mode else ("", world.cookie())
        self._words = {"host": world.host, "base": base, "who": who, "platform": world.platform}

    def fill(self, data: bytes) -> bytes:
        for word, value in self._words.items():
            data = data.replace(b"{%b}" % word.encode(), value.encode())
        return data

    async def warm_up(self) -> None:
        """So that the directory knows who and where: what is under test is decided from memory."""
        Recorder(self.world.ide, OK)
        await self.world.ask(self.fill(HARMLESS))

    async def play(self, case: Case, before: bytes = b"", times: int = 1) -> Outcome:
        world = self.world
        for upstream in (world.ide, world.api):
            world.gateway.pool.drop(upstream.address)
        there, elsewhere = (world.api, world.ide) if case.by_api else (world.ide, world.api)
        recorder, other = Recorder(there, case.answer), Recorder(elsewhere, OK)
        client = await world.connect()
        player = _Player(self, client, recorder)
        try:
            for step in (before, *case.steps * times):
                await player.take(step)
            await player.finish(case.end)
        finally:
            client.writer.transport.abort()
        await self._settled()
        return Outcome(recorder.seen, player.got, player.probed, other.seen, recorder.problems)

    async def _settled(self) -> None:
        """Nothing stays behind: every connection to an upstream is either closed or idle in the pool."""
        gateway = self.world.gateway
        await until(lambda: not gateway._connections, "the gateway to let the client go", EVERY)
        idle = gateway.pool._idle
        await until(lambda: self._open() == sum(map(len, idle.values())), "its connections to rest", EVERY)

    def _open(self) -> int:
        return self.world.ide.open + self.world.api.open


class _Player:
    def __init__(self, stage: Stage, client: Client, recorder: Recorder) -> None:
        self.got = b""
        self.probed = False
        self._stage = stage
        self._client = client
        self._recorder = recorder

    async def take(self, step: Step) -> None:
        if isinstance(step, UpstreamSaw):
            wanted = self._stage.fill(step.data)
            await until(lambda: wanted in self._recorder.seen, f"the upstream to see {wanted!r}", EVERY)
        elif isinstance(step, ClientGot):
            await self._read_until(step.data)
        elif step is Act.HALF_CLOSE:
            self._client.writer.write_eof()
        elif step is Act.LEAVE:
            self._client.writer.transport.abort()
        else:
            assert isinstance(step, bytes)
            self._client.send(self._stage.fill(step))

    async def finish(self, end: End) -> None:
        if end is End.GONE:
            return
        if end is End.STAYS:
            self._client.send(self._stage.fill(PROBE))
            await self._read_until(PROBED)
            self.probed = self.got.endswith(PROBED)
            self.got = self.got.removesuffix(PROBED)
        else:
            self.got = without_policy(self.got + await self._client.rest())

    async def _read_until(self, data: bytes) -> None:
        with contextlib.suppress(ConnectionError):
            while data not in self.got:
                piece = await asyncio.wait_for(self._client.reader.read(65536), PATIENCE)
                if not piece:
                    return
                self.got = without_policy(self.got + piece)
