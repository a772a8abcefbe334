"""The part of rtnetlink that a workspace's network needs. Standard library only (see `keeper`)."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_ERROR, _DONE = 2, 3
_GET_ROUTE, _NEW_RULE = 26, 32
_REQUEST, _ACKNOWLEDGE, _DUMP, _CREATE = 0x1, 0x4, 0x300, 0x600
_ROUTE_IS_LOCAL = 2
_MAIN_TABLE = 254
_LOOK_UP, _PROHIBIT = 1, 8
_DESTINATION, _PRIORITY, _PROTOCOL, _PORTS = 1, 6, 22, 24
_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")


@dataclass(frozen=True)
class Rule:
    """Routing rule for packets to one network, optionally of one protocol and port."""

    network: str
    allowed: bool
    protocol: int | None = None
    port: int | None = None


def own_networks() -> list[str]:
    """Return every network that this machine accepts as its own, from the kernel's local table."""
    found: list[str] = []
    with _socket() as netlink:
        netlink.send(_message(_GET_ROUTE, _REQUEST | _DUMP, struct.pack("=BBBBBBBBI", *_route_header())))
        for kind, body in _answers(netlink):
            length, route_type = body[1], body[7]
            if kind == _GET_ROUTE - 2 and route_type == _ROUTE_IS_LOCAL:
                address = dict(_attributes(body[12:])).get(_DESTINATION, bytes(4))
                found.append(f"{socket.inet_ntoa(address)}/{length}")
    return found


def add_rules(rules: Iterable[Rule]) -> None:
    """Add the rules in their order, all before the lookup in the main table."""
    with _socket() as netlink:
        for priority, rule in enumerate(rules, start=1):
            netlink.send(_message(_NEW_RULE, _REQUEST | _ACKNOWLEDGE | _CREATE, _rule(priority, rule)))
            for _ in _answers(netlink):
                pass


def _route_header() -> tuple[int, ...]:
    return (socket.AF_INET, 0, 0, 0, 0, 0, 0, 0, 0)


def _rule(priority: int, rule: Rule) -> bytes:
    address, _, length = rule.network.partition("/")
    action = _LOOK_UP if rule.allowed else _PROHIBIT
    table = _MAIN_TABLE if rule.allowed else 0
    body = struct.pack("=BBBBBBBBI", socket.AF_INET, int(length or 32), 0, 0, table, 0, 0, action, 0)
    body += _attribute(_DESTINATION, socket.inet_aton(address))
    body += _attribute(_PRIORITY, struct.pack("=I", priority))
    if rule.protocol is not None:
        body += _attribute(_PROTOCOL, struct.pack("=B", rule.protocol))
    if rule.port is not None:
        body += _attribute(_PORTS, struct.pack("=HH", rule.port, rule.port))
    return body


def _socket() -> socket.socket:
    return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)


def _message(kind: int, flags: int, body: bytes) -> bytes:
    return _HEADER.pack(_HEADER.size + len(body), kind, flags, 0, 0) + body


def _attribute(kind: int, value: bytes) -> bytes:
    data = _ATTRIBUTE.pack(_ATTRIBUTE.size + len(value), kind) + value
    return data + bytes(-len(data) % 4)


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(data)
        yield kind, data[_ATTRIBUTE.size : length]
        data = data[length + -length % 4 :]


def _answers(netlink: socket.socket) -> Iterator[tuple[int, bytes]]:
    """Yield the kernel's answers to one request."""
    while True:
        data = netlink.recv(1 << 16)
        while data:
            length, kind, _, _, _ = _HEADER.unpack_from(data)
            body, data = data[_HEADER.size : length], data[length + -length % 4 :]
            if kind == _DONE:
                return
            if kind == _ERROR:
                (code,) = struct.unpack_from("=i", body)
                if code:
                    raise OSError(-code, os.strerror(-code))
                return
            yield kind, body
