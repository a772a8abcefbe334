"""What both transports share: headers, TLS and addresses."""

import ssl

from codehub.client.http_errors import USER_AGENT
from codehub.client.requests import API, Request, Server


def base_headers(server: Server) -> dict[str, str]:
    return {"User-Agent": USER_AGENT, "Accept-Encoding": "identity", **server.headers}


def ssl_context(server: Server) -> ssl.SSLContext:
    """Return a context with the system's certificates. For http, one without any, which costs no time."""
    return ssl.create_default_context() if server.is_https else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def target(server: Server, request: Request) -> str:
    return f"{server.url}{API}{request.path}"
