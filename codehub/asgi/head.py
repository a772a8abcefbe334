"""HEAD for every address that answers GET (RFC 9110, 9.3.2)."""

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class HeadMiddleware:
    """Middleware that answers HEAD with the head of the answer to GET.

    The call ends as soon as its answer begins: the body of a stream may have no end.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return
        begun = asyncio.Event()

        async def send_head(message: Message) -> None:
            if message["type"] == "http.response.start":
                await send(message)
                await send({"type": "http.response.body", "body": b""})
                begun.set()
            elif begun.is_set():
                await asyncio.Event().wait()  # until the call is cancelled

        # Without the connection, which a stream that is cancelled would abort. Range is for GET only.
        headers = [(name, value) for name, value in scope["headers"] if name != b"range"]
        as_get = {**scope, "method": "GET", "headers": headers, "extensions": {}}
        call = asyncio.ensure_future(self._app(as_get, receive, send_head))
        waiting = asyncio.ensure_future(begun.wait())
        try:
            await asyncio.wait({call, waiting}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (call, waiting):
                task.cancel()
            results = await asyncio.gather(call, waiting, return_exceptions=True)
        if isinstance(results[0], Exception):
            raise results[0]
