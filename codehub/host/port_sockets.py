"""Connection to a port in a workspace's network, through a socket of its port broker (ADR 0013).

A socket belongs to the network namespace in which it was created, whichever process connects it. The
broker speaks no protocol, and no byte of the connection passes through it.
"""

import asyncio
import contextlib
import socket
from typing import Final

from codehub.host.full_sockets import FullSockets

_LOOPBACK: Final = {socket.AF_INET: "127.0.0.1", socket.AF_INET6: "::1"}
_HANDED_OUT: Final = len(_LOOPBACK)


async def connect_through(broker: str, port: int, full_sockets: FullSockets) -> socket.socket:
    """Connect to the port on either loopback address. Raise OSError if nothing listens."""
    failure: OSError = ConnectionRefusedError("the port broker handed out no socket")
    with contextlib.ExitStack() as unused:
        for each in await _take_sockets(broker, full_sockets):
            unused.enter_context(each)
            try:
                await asyncio.get_running_loop().sock_connect(each, (_LOOPBACK[each.family], port))
            except OSError as error:
                failure = error
            else:
                return each.dup()
    raise failure


async def _take_sockets(broker: str, full_sockets: FullSockets) -> list[socket.socket]:
    with socket.socket(socket.AF_UNIX) as client:
        client.setblocking(False)

        async def connect() -> None:
            client.connect(broker)

        await full_sockets.connect(broker, connect)
        await _wait_until_readable(client)
        _, handed_out, *_ = socket.recv_fds(client, 1, _HANDED_OUT)
    made = [socket.socket(fileno=descriptor) for descriptor in handed_out]
    for each in made:
        each.set_inheritable(False)
        each.setblocking(False)
    return made


async def _wait_until_readable(connection: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    arrived = asyncio.Event()
    loop.add_reader(connection, arrived.set)
    try:
        await arrived.wait()
    finally:
        loop.remove_reader(connection)
