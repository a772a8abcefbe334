"""Downloads that go on where they broke off."""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial
from pathlib import Path

from codehub.client.aio.calls import AsyncCalls
from codehub.client.aio.io import run_blocking, sleep
from codehub.client.errors import CodehubError
from codehub.client.file_rules import Download
from codehub.client.local_files import NewFile, Progress
from codehub.client.requests import Request
from codehub.client.retries import is_passing


async def stream_content(
    calls: AsyncCalls,
    name: str,
    make_request: Callable[[dict[str, str]], Request],
    progress: Progress | None = None,
) -> AsyncGenerator[bytes, None]:
    """Yield a content in pieces. Raise FileChanged if it changes meanwhile.

    `make_request` returns the request with the headers for what is missing.
    """
    download = Download(name)
    backoff = calls.reconnects()
    while True:
        try:
            async with calls.stream(make_request(download.headers())) as answer:
                download.begin(answer.status, answer.headers)
                async for piece in answer.pieces:
                    download.add(len(piece))
                    yield piece
                    backoff.restart()
                    if progress is not None:
                        progress(download.offset, download.size)
            download.check_complete()
            return
        except CodehubError as problem:
            if not is_passing(problem):
                raise
            delay = backoff.delay(problem)
        if download.is_complete:
            return
        await sleep(delay)


async def save(pieces: AsyncGenerator[bytes, None], target: Path, mode: int = 0o666) -> None:
    """Write pieces to a file that appears when all of it is there."""
    new = await run_blocking(partial(NewFile.create, target, mode))
    try:
        async with aclosing(pieces) as opened:
            async for piece in opened:
                await run_blocking(partial(new.write, piece))
        await run_blocking(new.finish)
    except BaseException:
        new.discard()
        raise
