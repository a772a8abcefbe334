"""Mutated messages for fuzz tests.

The runs in the test suite are short and always the same. `FUZZ_EXAMPLES=20000` in the environment sets
their length, and makes each run different.
"""

import os
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

TOKENS = (
    b"\r", b"\n", b"\r\n", b"\n\r", b"\r\n ", b"\r\n\t", b"\r\n\r\n", b"\x00", b" ", b"  ", b"\t", b":",
    b" :", b": ", b",", b";", b"=", b'"', b"#", b"?", b"*", b"/", b"//", b"%", b"%00", b"%2e", b"\\",
    b"@", b"+", b"-", b"_", b"0", b"0x", b"5", b"00", b"1_0", b"18446744073709551619", b"\x0b", b"\x0c",
    b"\x1b", b"\x7f", b"\x80", b"\x85", b"\xa0", b"\xff", b"chunked", b"CHUNKED", b"identity", b"gzip, ",
    b", chunked", b"close", b"upgrade", b"websocket", b"GET", b"HEAD", b"POST", b"get", b"HTTP/1.0",
    b"HTTP/1.1", b"HTTP/2.0", b"RTSP/1.0", b"http://x", b"http://", b"0\r\n\r\n", b"3\r\nabc\r\n",
    b"GET /hidden HTTP/1.1\r\nHost: x\r\n\r\n", b"session=alice", b"; session=", b"__Host-session=",
    b"chub_", b".", b"..", b"[::1]", b":80", b"HTTP/1.1 200 OK\r\n", b"100", b"101", b"204", b"304",
)  # fmt: skip
LINES = (
    b"Transfer-Encoding: gzip, chunked", b"Transfer-Encoding: chunked, chunked", b"Connection: host, cookie",
    b"Content-Length: 5", b"Content-Length: 0", b"content-length: 05", b"Content-Length : 5",
    b"Content-Length: 5, 5", b"Transfer-Encoding: chunked", b"Transfer-Encoding : chunked",
    b"Transfer-Encoding: xchunked", b" folded", b"\tfolded", b"Host: x", b"Host: y", b"Connection: close",
    b"Connection: keep-alive, x-a", b"Connection: upgrade",
    b"Connection: transfer-encoding, content-length", b"Upgrade: websocket", b"X-A: 1", b"x-a: 2",
    b"X_A: 3", b"X", b": x", b"Cookie: session=alice", b"Cookie: a=1; b=2", b"Set-Cookie: session=evil",
    b"Set-Cookie: a=1", b"Authorization: Bearer chub_x", b"Expect: 100-continue", b"TE: trailers",
    b"X-Forwarded-For: 192.0.2.1", b"Origin: http://x", b"Sec-Fetch-Mode: navigate",
    b"Sec-Fetch-Dest: document", b"Accept: text/html", b"",
)  # fmt: skip


@st.composite
def mutated(draw: st.DrawFn, good: tuple[bytes, ...], most: int = 4) -> bytes:
    """Return one of the valid messages, after up to `most` changes."""
    data = draw(st.sampled_from(good))
    for _ in range(draw(st.integers(0, most))):
        data = draw(st.sampled_from(CHANGES))(draw, data)
    return data


def _position(draw: st.DrawFn, data: bytes) -> int:
    return draw(st.integers(0, len(data)))


def _flip(draw: st.DrawFn, data: bytes) -> bytes:
    at = _position(draw, data)
    return data[:at] + bytes([draw(st.integers(0, 255))]) + data[at + 1 :]


def _insert(draw: st.DrawFn, data: bytes) -> bytes:
    at = _position(draw, data)
    return data[:at] + draw(st.sampled_from(TOKENS)) + data[at:]


def _replace(draw: st.DrawFn, data: bytes) -> bytes:
    """Replace a token, or some bytes, by another token."""
    old, new = draw(st.sampled_from(TOKENS)), draw(st.sampled_from(TOKENS))
    if old in data:
        return data.replace(old, new, 1)
    at = _position(draw, data)
    return data[:at] + new + data[at + len(new) :]


def _delete(draw: st.DrawFn, data: bytes) -> bytes:
    at = _position(draw, data)
    return data[:at] + data[at + draw(st.integers(1, 4)) :]


def _cut(draw: st.DrawFn, data: bytes) -> bytes:
    return data[: _position(draw, data)]


def _on_lines(change: Callable[[st.DrawFn, list[bytes], int], None]) -> Callable[[st.DrawFn, bytes], bytes]:
    def on_data(draw: st.DrawFn, data: bytes) -> bytes:
        lines = data.split(b"\r\n")
        change(draw, lines, draw(st.integers(0, len(lines) - 1)))
        return b"\r\n".join(lines)

    return on_data


@_on_lines
def _add_line(draw: st.DrawFn, lines: list[bytes], at: int) -> None:
    lines.insert(max(at, 1), draw(st.sampled_from(LINES)))


@_on_lines
def _double_line(_: st.DrawFn, lines: list[bytes], at: int) -> None:
    lines.insert(at, lines[at])


@_on_lines
def _drop_line(_: st.DrawFn, lines: list[bytes], at: int) -> None:
    del lines[at]


@_on_lines
def _move_line(draw: st.DrawFn, lines: list[bytes], at: int) -> None:
    line = lines.pop(at)
    lines.insert(draw(st.integers(0, len(lines))), line)


@_on_lines
def _bare_line_end(draw: st.DrawFn, lines: list[bytes], at: int) -> None:
    if at + 1 < len(lines):
        lines[at : at + 2] = [lines[at] + draw(st.sampled_from([b"\n", b"\r", b""])) + lines[at + 1]]


CHANGES = (
    _add_line, _add_line, _insert, _insert, _replace, _flip, _delete, _double_line, _drop_line, _move_line,
    _bare_line_end, _cut,
)  # fmt: skip


@st.composite
def in_pieces(draw: st.DrawFn, data: bytes) -> list[bytes]:
    """Cut bytes into pieces, as they may arrive."""
    positions = sorted(draw(st.lists(st.integers(0, len(data)), max_size=5)))
    return [data[start:end] for start, end in zip([0, *positions], [*positions, len(data)], strict=True)]


def fuzz(examples: int) -> Callable[[Any], Any]:
    chosen = os.environ.get("FUZZ_EXAMPLES")
    return settings(
        max_examples=int(chosen) if chosen else examples,
        derandomize=not chosen,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
