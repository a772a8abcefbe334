"""Builders of tar streams, valid and invalid."""

import tarfile

from codehub.storage.tar.header import BLOCK


def entry(name: str, kind: bytes = tarfile.REGTYPE, **fields: object) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type = kind
    content = fields.pop("content", b"")
    assert isinstance(content, bytes)
    info.size = len(content)
    for field, value in fields.items():
        setattr(info, field, value)
    return info, content


HOME = entry("./", tarfile.DIRTYPE)


def stream(*entries: tuple[tarfile.TarInfo, bytes], end: bytes = bytes(2 * BLOCK)) -> bytes:
    """Return a stream with the given headers. Unlike tarfile, it keeps `./` and invalid names."""
    parts = []
    for info, content in entries:
        parts.append(_headers(info))
        parts.append(content + bytes(-len(content) % BLOCK))
    return b"".join(parts) + end


def _headers(info: tarfile.TarInfo) -> bytes:
    fields = info.get_info()
    fields["name"] = info.name
    pax = dict(info.pax_headers)
    header = tarfile.TarInfo._create_header(fields, tarfile.USTAR_FORMAT, "ascii", "surrogateescape")  # type: ignore[attr-defined]
    if not pax:
        return header
    return (
        pax_block(b"".join(record(key.encode(), value.encode("latin-1")) for key, value in pax.items()))
        + header
    )


def record(key: bytes, value: bytes) -> bytes:
    body = b" " + key + b"=" + value + b"\n"
    length = len(body)
    while len(str(length)) + len(body) != length:
        length = len(str(length)) + len(body)
    return str(length).encode() + body


def pax_block(data: bytes) -> bytes:
    info = tarfile.TarInfo("./PaxHeaders/x")
    info.type = b"x"
    info.size = len(data)
    header = tarfile.TarInfo._create_header(info.get_info(), tarfile.USTAR_FORMAT, "ascii", "surrogateescape")  # type: ignore[attr-defined]
    return header + data + bytes(-len(data) % BLOCK)


def with_prefix(data: bytes, prefix: bytes) -> bytes:
    block = bytearray(data[:BLOCK])
    block[345 : 345 + len(prefix)] = prefix
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block) + data[BLOCK:]


def sparse(map_text: bytes, size: int, realsize: str, **more: str) -> tuple[tarfile.TarInfo, bytes]:
    pax = {
        "GNU.sparse.major": "1",
        "GNU.sparse.minor": "0",
        "GNU.sparse.name": "./s",
        "GNU.sparse.realsize": realsize,
    }
    body = map_text + bytes(-len(map_text) % BLOCK)
    return entry("./GNUSparseFile.1/s", content=body + bytes(size), pax_headers=pax | more)
