"""Floods of the API from separate addresses: sign-ins, costly searches, unread event streams.

Runs in a separate process, so that its cost is not the test's. It exits when its standard input
closes.
"""

import asyncio
import contextlib
import itertools
import sys

import httpx

SIGN_INS, SEARCHES, STREAMS = 100, 8, 120
CONNECTION_ERRORS = (httpx.HTTPError, OSError)


def _client(port: int, address: str, session: str = "") -> httpx.AsyncClient:
    transport = httpx.AsyncHTTPTransport(local_address=address, limits=httpx.Limits(max_connections=None))
    cookies = {"session": session} if session else {}
    return httpx.AsyncClient(
        transport=transport, base_url=f"http://127.0.0.1:{port}", cookies=cookies,
        headers={"Host": f"localhost:{port}"}, timeout=30,
    )  # fmt: skip


async def _sign_in(client: httpx.AsyncClient, number: int) -> None:
    for attempt in itertools.count():
        with contextlib.suppress(*CONNECTION_ERRORS):
            body = {"username": f"nobody-{number}-{attempt}", "password": "a guess"}
            await client.post("/api/v1/login", json=body)


async def _search(client: httpx.AsyncClient) -> None:
    query = " ".join(["%_" * 6] * 8)
    while True:
        with contextlib.suppress(*CONNECTION_ERRORS):
            await client.get("/api/v1/workspaces", params={"q": query[:100]})


async def _open_unread(port: int, session: str) -> asyncio.StreamWriter:
    _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024, local_addr=("127.0.0.9", 0))
    head = f"GET /api/v1/events HTTP/1.1\r\nHost: localhost:{port}\r\nCookie: session={session}\r\n\r\n"
    writer.write(head.encode())
    return writer


async def _main(port: int, session: str) -> None:
    async with (
        _client(port, "127.0.0.7") as strangers,
        _client(port, "127.0.0.8", session) as searcher,
        asyncio.TaskGroup() as group,
    ):
        streams = [await _open_unread(port, session) for _ in range(STREAMS)]
        work = [
            *(group.create_task(_sign_in(strangers, number)) for number in range(SIGN_INS)),
            *(group.create_task(_search(searcher)) for _ in range(SEARCHES)),
        ]
        print("ready", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        for task in work:
            task.cancel()
        for writer in streams:
            writer.close()


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1]), sys.argv[2]))
