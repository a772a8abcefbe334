"""Commands of a workspace: output as it comes, input, signals, exit code."""

import time
from collections.abc import AsyncGenerator, AsyncIterator
from functools import partial

from codehub.client.aio.calls import AsyncCalls
from codehub.client.aio.io import merge, sleep
from codehub.client.aio.terminals import AsyncTerminal
from codehub.client.aio.transport import AsyncCancellation
from codehub.client.answers import byte_offset
from codehub.client.errors import CodehubError, CommandKilled, ConnectionFailed, Silence, TimedOut
from codehub.client.models import Chunk, Completed, ExecInfo
from codehub.client.requests import Request, get, query_of
from codehub.client.retries import LONGEST_DELAY, is_passing

INPUT_BYTES = 256 << 10
INPUT_SECONDS = 600.0
_STREAMS = ("stdout", "stderr")


class AsyncExec:
    """A command of a workspace. It goes on when this client ends.

    Iterate over it to get its output as it comes, of both streams. If the connection breaks, the output
    goes on where it was.
    """

    def __init__(self, calls: AsyncCalls, path: str, info: ExecInfo) -> None:
        self._calls = calls
        self._path = path
        self.info = info

    @property
    def id(self) -> str:
        return self.info.id

    @property
    def state(self) -> str:
        """`running`, `exited`, `killed` or `lost`, as last seen."""
        return self.info.state

    @property
    def exit_code(self) -> int | None:
        """The exit code, or None while the command runs or if nobody knows it, as last seen."""
        return self.info.exit_code

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {self.state}>"

    async def refresh(self) -> ExecInfo:
        """Read the state of the command."""
        self.info = await self._calls.fetch(ExecInfo, get(self._path))
        return self.info

    def __aiter__(self) -> AsyncGenerator[Chunk, None]:
        """Yield the output of both streams as it comes, until the command ends."""
        if self.info.tty:
            return self.output("stdout")
        return merge([partial(self._follow, stream, 0) for stream in _STREAMS])

    def output(
        self, stream: str = "stdout", offset: int = 0, *, follow: bool = True
    ) -> AsyncGenerator[Chunk, None]:
        """Yield the output of one stream from an offset. Without `follow`, only what there is by now."""
        if follow:
            return self._follow(stream, offset, AsyncCancellation())
        return self._read(stream, offset)

    async def _read(self, stream: str, offset: int) -> AsyncGenerator[Chunk, None]:
        info = await self.refresh()
        end = info.stdout_bytes if stream == "stdout" else info.stderr_bytes
        backoff = self._calls.reconnects()
        while offset < end:
            try:
                async for chunk in self._pieces(stream, offset, False, AsyncCancellation()):
                    yield chunk
                    offset = chunk.offset + len(chunk.data)
                    backoff.restart()
                return
            except CodehubError as problem:
                if not is_passing(problem):
                    raise
                delay = backoff.delay(problem)
            await sleep(delay)

    async def _follow(
        self, stream: str, offset: int, cancellation: AsyncCancellation
    ) -> AsyncGenerator[Chunk, None]:
        backoff = self._calls.reconnects()
        while True:
            try:
                async for chunk in self._pieces(stream, offset, True, cancellation):
                    yield chunk
                    offset = chunk.offset + len(chunk.data)
                    backoff.restart()
                if await self._is_complete(stream, offset):
                    return
                delay = backoff.delay(ConnectionFailed("The output ended before the command did."))
            except Silence:
                continue  # a command may write nothing for hours
            except CodehubError as problem:
                if cancellation.is_cancelled:
                    return
                if not is_passing(problem):
                    raise
                delay = backoff.delay(problem)
            await sleep(delay)

    async def _pieces(
        self, stream: str, offset: int, follow: bool, cancellation: AsyncCancellation
    ) -> AsyncGenerator[Chunk, None]:
        """Yield what one response has. Its first byte may lie behind the offset."""
        query = query_of(stream=stream, offset=offset, follow=follow)
        request = Request("GET", f"{self._path}/output", query, is_repeatable=True)
        async with self._calls.stream(request, cancellation) as answer:
            start = byte_offset(answer.headers, "codehub-offset", offset)
            skipped = start - offset
            async for data in answer.pieces:
                if data:
                    yield Chunk(stream, data, start, skipped)
                    start, skipped = start + len(data), 0

    async def _is_complete(self, stream: str, offset: int) -> bool:
        """Return whether the command has ended and this was its output. A proxy may end a response too."""
        info = await self.refresh()
        return not info.is_running and offset >= (
            info.stdout_bytes if stream == "stdout" else info.stderr_bytes
        )

    async def wait(self, timeout: float | None = None) -> int:
        """Wait until the command ends, and return its exit code.

        Raise CommandKilled if CodeHub ended it or nobody knows how it ended, TimedOut after `timeout`.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        delay = 0.05
        while (await self.refresh()).is_running:
            left = LONGEST_DELAY if deadline is None else deadline - time.monotonic()
            if left <= 0:
                raise TimedOut(f"The command still runs after {timeout:g} s.")
            await sleep(min(delay, left))
            delay = min(delay * 1.5, 1.0)
        if self.info.state != "exited" or self.info.exit_code is None:
            raise CommandKilled(self.info.state, self.info.reason, self.info.exit_code)
        return self.info.exit_code

    async def communicate(self, input: bytes | None = None, timeout: float | None = None) -> Completed:  # noqa: A002
        """Send the input, read all output, and return both with the exit code. It is all in memory."""
        if input is not None:
            await self.write(input)
            await self.close_input()
        output: dict[str, list[bytes]] = {"stdout": [], "stderr": []}
        skipped = 0
        deadline = None if timeout is None else time.monotonic() + timeout
        async for chunk in self:
            output[chunk.stream].append(chunk.data)
            skipped += chunk.skipped
            if deadline is not None and time.monotonic() > deadline:
                raise TimedOut(f"The command still runs after {timeout:g} s.")
        code = await self.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
        skipped += self.info.dropped_bytes
        return Completed(code, b"".join(output["stdout"]), b"".join(output["stderr"]), skipped)

    async def write(self, data: bytes, timeout: float = INPUT_SECONDS) -> None:
        """Send input. It returns when the command has taken it, at most after `timeout` for each 256 KiB.

        Input is never sent twice. If the connection breaks, ConnectionFailed says that the command may have
        taken a part.
        """
        for start in range(0, len(data), INPUT_BYTES):
            await self._send_input(data[start : start + INPUT_BYTES], timeout, close=False)

    async def write_from(self, pieces: AsyncIterator[bytes], timeout: float = INPUT_SECONDS) -> None:
        """Send input as it comes, and then close the input."""
        async for piece in pieces:
            await self.write(piece, timeout)
        await self.close_input()

    async def close_input(self) -> None:
        """End the command's input."""
        await self._send_input(b"", INPUT_SECONDS, close=True)

    async def _send_input(self, data: bytes, timeout: float, *, close: bool) -> None:
        await self._calls.send(
            Request(
                "POST",
                f"{self._path}/stdin",
                query_of(close=close or None),
                _OCTETS,
                content=data,
                seconds=timeout,
            )
        )

    async def signal(self, signal: str | int) -> None:
        """Send a signal to the command's process group, such as INT or 15."""
        await self._calls.send(Request("POST", f"{self._path}/signal", json={"signal": signal}))

    async def resize(self, rows: int, cols: int) -> None:
        """Change the size of the command's terminal."""
        size = {"rows": rows, "cols": cols}
        await self._calls.send(Request("POST", f"{self._path}/resize", json=size, is_repeatable=True))

    async def delete(self) -> None:
        """Kill the command if it runs, and forget it with its output."""
        await self._calls.send(Request("DELETE", self._path, is_repeatable=True))

    def attach(self, *, readonly: bool = False) -> AsyncTerminal:
        """Return the command's terminal, to use with `with`."""
        return AsyncTerminal(self._calls, f"{self._path}/attach", readonly=readonly)


_OCTETS = {"Content-Type": "application/octet-stream"}
