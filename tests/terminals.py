"""Programs in a pseudo-terminal."""

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
from collections.abc import Mapping, Sequence
from typing import Self

from tests.waiting import PATIENCE, wait_for


class InTerminal:
    """A program whose terminal is the test."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], rows: int = 24, cols: int = 80
    ) -> None:
        self._master, slave = pty.openpty()
        self.shown = b""
        self.resize(rows, cols)
        self.process = subprocess.Popen(
            command, env=dict(environment), stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        os.close(slave)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(PATIENCE)
        os.close(self._master)

    def resize(self, rows: int, cols: int) -> None:
        """Change the size, as a window does. The kernel sends SIGWINCH."""
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def expect(self, text: str, after: int = 0) -> int:
        """Wait until the text is shown behind a position, and return the position behind it."""

        def found() -> int:
            self._read()
            at = self.shown.find(text.encode(), after)
            assert at >= 0 or self.process.poll() is None or self._read(), self.shown.decode(errors="replace")
            return at + len(text.encode()) if at >= 0 else 0

        try:
            return wait_for(found, repr(text), every=0.02)
        except AssertionError as error:
            raise AssertionError(f"{error}\nshown behind {after}: {self.shown[after:]!r}") from error

    def wait(self) -> int:
        """Return the exit code."""

        def code() -> tuple[int] | None:
            self._read()
            found = self.process.poll()
            return None if found is None else (found,)

        return wait_for(code, "the program to end", every=0.02)[0]

    def is_raw(self) -> bool:
        return not termios.tcgetattr(self._master)[3] & termios.ICANON

    def is_hidden(self) -> bool:
        """Return whether what is typed is not shown."""
        return not termios.tcgetattr(self._master)[3] & termios.ECHO

    def send_signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def _read(self) -> bool:
        """Read what there is. Return whether that was anything."""
        size = len(self.shown)
        with contextlib.suppress(OSError):  # the program has closed its terminal
            while select.select([self._master], [], [], 0)[0]:
                data = os.read(self._master, 65536)
                if not data:
                    break
                self.shown += data
        return len(self.shown) > size
