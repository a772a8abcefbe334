"""Output of commands as text of bounded size, with the offsets of what is left out."""

from dataclasses import dataclass, field
from typing import Final

from codehub.client.models import Chunk, ExecInfo

MOST_BYTES: Final = 20_000
"""Of one stream in one result."""
_MOST_NEWS: Final = 2_000
"""Characters of one progress notification."""
STREAMS: Final = ("stdout", "stderr")


@dataclass
class OutputTail:
    """The last bytes of a stream."""

    end: int
    data: bytearray = field(default_factory=bytearray)

    def add(self, chunk: Chunk) -> None:
        if chunk.offset != self.end:
            self.data.clear()  # the server no longer has what is between
        self.data += chunk.data
        self.end = chunk.offset + len(chunk.data)
        del self.data[:-MOST_BYTES]

    @property
    def start(self) -> int:
        return self.end - len(self.data)


class News:
    """Output since the last progress notification."""

    def __init__(self) -> None:
        self._text = ""

    def add(self, data: bytes) -> None:
        self._text = (self._text + data[-4 * _MOST_NEWS :].decode(errors="replace"))[-_MOST_NEWS:]

    def take(self) -> str:
        text, self._text = self._text, ""
        return text


def state_line(info: ExecInfo) -> str:
    """Return in a sentence how a command is."""
    if info.is_running:
        return f"Command {info.id} is running."
    if info.state == "exited":
        return f"Command {info.id} exited with code {info.exit_code}."
    if info.state == "lost":
        return f"Command {info.id} is lost: nobody recorded how it ended."
    return f"Command {info.id} was killed ({info.reason or 'no reason given'})."


def report(info: ExecInfo, tails: dict[str, OutputTail]) -> str:
    """Return the state of a command, and the last bytes of its output."""
    lines = [state_line(info)]
    if info.is_running:
        lines.append("Call wait_command to wait for it, read_output to read on, kill_command to end it.")
    if info.dropped_bytes:
        lines.append(f"{info.dropped_bytes} bytes of output are lost: the server's disk was full.")
    totals = {"stdout": info.stdout_bytes, "stderr": info.stderr_bytes}
    for stream, tail in tails.items():
        if totals[stream]:
            lines.append(_section(stream, tail, totals[stream]))
        elif stream == "stdout":
            lines.append(f"--- {stream}: empty")
    return "\n".join(lines)


def _section(stream: str, tail: OutputTail, total: int) -> str:
    head = f"--- {stream}: {total} bytes"
    if tail.start or tail.end < total:
        head = (
            f'--- {stream}: bytes {tail.start} to {tail.end} of {total}. read_output with stream="{stream}"'
        )
        before = " and offset=0 for those before" if tail.start else ""
        after = f" and offset={tail.end} for those after" if tail.end < total else ""
        head += f"{before},{after}" if before and after else before + after
    return f"{head}\n{tail.data.decode(errors='replace')}"
