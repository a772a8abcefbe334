"""Replies for a port of a workspace that cannot be relayed to (ADR 0013)."""

import os

from codehub.gateway.http1 import reply
from codehub.gateway.http1.reply import Reply
from codehub.gateway.http1.request_head import RequestHead
from codehub.gateway.pages import Pages


class PortErrors:
    def __init__(self, pages: Pages) -> None:
        self._pages = pages

    def no_such_port(self, head: RequestHead) -> Reply:
        if head.is_navigation:
            return self._pages.no_such_port(head)
        return reply.error(404, "NOT_FOUND", "A port is a number from 1 to 65535, in plain digits.")

    def off(self, head: RequestHead) -> Reply:
        if head.is_navigation:
            return self._pages.ports_are_off(head)
        message = "Ports are off: this workspace was started without its own network."
        return reply.error(502, "UPSTREAM_UNAVAILABLE", message)

    def unreachable(self, head: RequestHead, port: int, address: str) -> Reply:
        if _has_no_port_broker(address):
            return self.off(head)
        if head.is_navigation:
            return self._pages.nothing_listens(head, port, in_container=address.startswith("tcp:"))
        message = f"Nothing answers on port {port} of this workspace."
        return reply.error(502, "UPSTREAM_UNAVAILABLE", message)


def _has_no_port_broker(address: str) -> bool:
    """Return whether the workspace was started without its own network."""
    kind, _, where = address.partition(":")
    return kind == "broker" and not os.access(where.rpartition(":")[0], os.F_OK)
