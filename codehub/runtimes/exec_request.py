"""The request to run a command in a workspace. Standard library only (see `keeper`)."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field

OUTPUT_BYTES = 16 << 20
KILL_AFTER_SECONDS = 10.0
"""How long a command has after SIGTERM."""


class CommandRefused(Exception):  # noqa: N818 - a fact, not a fault
    """The command was not started. The message is for the person who asked for it."""


@dataclass(frozen=True)
class TerminalSize:
    rows: int
    cols: int


@dataclass(frozen=True)
class ExecRequest:
    """A command, for a container that runs. `exec_id` names it for good: it starts at most once."""

    exec_id: str
    command: list[str]
    env: dict[str, str] = field(default_factory=dict)
    """Variables besides those of the workspace's IDE."""
    cwd: str = ""
    """Relative to the home unless absolute."""
    tty: TerminalSize | None = None
    stdin: bool = True
    """Whether input will be sent. Otherwise the command finds its input closed."""
    timeout_seconds: float | None = None
    kill_after_seconds: float = KILL_AFTER_SECONDS
    reserve_bytes: int = 0
    """Output is dropped while the disk has less free."""
    start_until: float | None = None
    """Deadline on this machine's monotonic clock. Later the caller has given up, so nothing starts."""
    output_bytes: int = OUTPUT_BYTES
    """The newest bytes of each stream that are kept."""

    @property
    def is_too_late(self) -> bool:
        return self.start_until is not None and time.monotonic() > self.start_until

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> ExecRequest:
        raw = json.loads(text)
        size = raw.pop("tty")
        return cls(**raw, tty=None if size is None else TerminalSize(**size))
