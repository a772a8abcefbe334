"""A small image registry that can be slow or broken."""

import asyncio
import gzip
import hashlib
import json
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from tests.docker.engine import tiny_rootfs

MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
CONFIG = "application/vnd.docker.container.image.v1+json"
TLS_HANDSHAKE = b"\x16"
LAYER = "application/vnd.docker.image.rootfs.diff.tar.gzip"


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


@dataclass
class Registry:
    """Serves one image under every tag but `missing`.

    The second half of its layer is held until `may_continue`.
    """

    port: int = 0
    broken: bool = False
    may_continue: asyncio.Event = field(default_factory=asyncio.Event)
    layer_requested: asyncio.Event = field(default_factory=asyncio.Event)
    layer_dropped: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        rootfs = tiny_rootfs(secrets.token_bytes(16))  # the engine has no layer of it yet
        self._layer = gzip.compress(rootfs, 1)
        command = ["httpd", "-f", "-p", "8080", "-h", "/www"]
        config = {
            "architecture": "amd64", "os": "linux", "config": {"Cmd": command, "Env": ["PATH=/bin"]},
            "rootfs": {"type": "layers", "diff_ids": [_digest(rootfs)]},
        }  # fmt: skip
        self._config = json.dumps(config).encode()
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": {"mediaType": CONFIG, "size": len(self._config), "digest": _digest(self._config)},
            "layers": [{"mediaType": LAYER, "size": len(self._layer), "digest": _digest(self._layer)}],
        }
        self._manifest = json.dumps(manifest).encode()

    @property
    def layer_bytes(self) -> int:
        return len(self._layer)

    def image(self, name: str, tag: str = "1") -> str:
        return f"127.0.0.1:{self.port}/{name}:{tag}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while first := await reader.read(1):
                if first == TLS_HANDSHAKE:
                    return  # the engine then retries without TLS
                line = first + await reader.readline()
                while await reader.readline() not in (b"\r\n", b""):
                    pass
                await self._answer(line.split()[1].decode(), line.startswith(b"HEAD"), writer)
        except ConnectionError:
            return  # the engine first tries TLS, and may close the connection
        finally:
            writer.close()

    async def _answer(self, path: str, head: bool, writer: asyncio.StreamWriter) -> None:
        status, kind, body = self._find(path)
        top = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        writer.write(f"{top}Docker-Content-Digest: {_digest(body)}\r\n\r\n".encode())
        if head:
            return
        if body is self._layer:
            body = await self._drip(body, writer)
        writer.write(body)
        await writer.drain()

    async def _drip(self, body: bytes, writer: asyncio.StreamWriter) -> bytes:
        """Send half in small pieces, then single bytes until `may_continue`; return the rest.

        The engine reports progress at most ten times a second. A closed connection is detected.
        """
        self.layer_requested.set()
        piece = len(body) // 64
        while not self.may_continue.is_set():
            if writer.transport.is_closing():
                self.layer_dropped.set()
                raise ConnectionResetError
            size = piece if len(body) > len(self._layer) / 2 else 1
            writer.write(body[:size])
            body = body[size:]
            await asyncio.sleep(0.02)
        return body

    def _find(self, path: str) -> tuple[str, str, bytes]:
        if self.broken:
            return "503 Service Unavailable", "text/plain", b"out of order"
        if path == "/v2/":
            return "200 OK", "application/json", b"{}"
        if "/manifests/" in path and not path.endswith("/missing"):
            return "200 OK", MANIFEST, self._manifest
        for blob, kind in ((self._config, CONFIG), (self._layer, LAYER)):
            if path.endswith(_digest(blob)):
                return "200 OK", kind, blob
        error = {"errors": [{"code": "MANIFEST_UNKNOWN", "message": "manifest unknown"}]}
        return "404 Not Found", "application/json", json.dumps(error).encode()


@asynccontextmanager
async def running_registry() -> AsyncIterator[Registry]:
    registry = Registry()
    clients: set[asyncio.Task[None]] = set()

    def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        clients.add(asyncio.create_task(registry.serve(reader, writer)))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    registry.port = server.sockets[0].getsockname()[1]
    try:
        yield registry
    finally:
        server.close()
        for client in clients:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
