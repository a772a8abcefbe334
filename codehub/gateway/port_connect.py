"""The way to a port in a workspace's own network: the workspace's keeper hands out sockets that lie in it.

A socket belongs to the network in which it was made, whoever connects it. The keeper speaks no protocol,
and no byte of what follows passes through it.
"""

import asyncio
import contextlib
import socket
from typing import Final

_LOOPBACK: Final = {socket.AF_INET: "127.0.0.1", socket.AF_INET6: "::1"}
_HANDED_OUT: Final = len(_LOOPBACK)
_BUSY_SECONDS: Final = 0.02


async def connect_through(door: str, port: int) -> socket.socket:
    """A connection to whatever listens on the port, on either loopback address; OSError when nothing does."""
    trouble: OSError = ConnectionRefusedError("the door was closed")
    with contextlib.ExitStack() as unused:
        for each in await _take_sockets(door):
            unused.enter_context(each)
            try:
                await asyncio.get_running_loop().sock_connect(each, (_LOOPBACK[each.family], port))
            except OSError as error:
                trouble = error
            else:
                return each.dup()
    raise trouble


async def _take_sockets(door: str) -> list[socket.socket]:
    with socket.socket(socket.AF_UNIX) as asking:
        asking.setblocking(False)
        await _knock(asking, door)
        await _readable(asking)
        _, handed_out, *_ = socket.recv_fds(asking, 1, _HANDED_OUT)
    made = [socket.socket(fileno=descriptor) for descriptor in handed_out]
    for each in made:
        each.set_inheritable(False)
        each.setblocking(False)
    return made


async def _knock(asking: socket.socket, door: str) -> None:
    """A Unix socket connects at once, or not at all when too many wait before it."""
    while True:
        try:
            asking.connect(door)
            return
        except BlockingIOError:
            await asyncio.sleep(_BUSY_SECONDS)


async def _readable(waiting: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    arrived = asyncio.Event()
    loop.add_reader(waiting, arrived.set)
    try:
        await arrived.wait()
    finally:
        loop.remove_reader(waiting)
