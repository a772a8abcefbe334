"""What is answered for a port of a workspace that has nothing to say itself."""

import os

from codehub.gateway.http1 import reply
from codehub.gateway.http1.reply import Reply
from codehub.gateway.http1.request_head import RequestHead
from codehub.gateway.pages import Pages


class PortErrors:
    def __init__(self, pages: Pages) -> None:
        self._pages = pages

    def none(self, head: RequestHead) -> Reply:
        if head.is_navigation:
            return self._pages.no_port(head)
        return reply.error(404, "NOT_FOUND", "A port is a number from 1 to 65535, in plain digits.")

    def off(self, head: RequestHead) -> Reply:
        if head.is_navigation:
            return self._pages.ports_are_off(head)
        words = "Ports are off: this workspace was started without a network of its own."
        return reply.error(502, "UPSTREAM_UNAVAILABLE", words)

    def unreachable(self, head: RequestHead, port: int, address: str) -> Reply:
        if _has_no_door(address):
            return self.off(head)
        if head.is_navigation:
            return self._pages.nothing_listens(head, port, in_container=address.startswith("tcp:"))
        words = f"Nothing answers on port {port} of this workspace."
        return reply.error(502, "UPSTREAM_UNAVAILABLE", words)


def _has_no_door(address: str) -> bool:
    kind, _, where = address.partition(":")
    return kind == "broker" and not os.access(where.rpartition(":")[0], os.F_OK)
