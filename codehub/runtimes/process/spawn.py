"""Start of a program after a preparation in the child. Standard library only (see `keeper`).

`subprocess` takes long to import and cannot report an error of the preparation.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

CANNOT_RUN = 126
_RESTORED = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGHUP, signal.SIGINT)


@dataclass(frozen=True)
class Spawned:
    """A program that is about to run."""

    pid: int
    report: int

    def wait(self) -> None:
        """Return once the program runs; raise OSError with the child's message if it cannot."""
        with os.fdopen(self.report) as report:
            error = report.read()
        if error:
            os.waitpid(self.pid, 0)
            raise OSError(error)


def spawn(
    argv: Sequence[str],
    env: Mapping[str, str],
    output: int,
    prepare: Callable[[], None],
    *,
    cwd: str = "/",
    umask: int = 0o022,
    kept: Sequence[int] = (),
) -> Spawned:
    """Fork, call `prepare` in the child, and execute the program.

    For processes with a single thread.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            _detach(output, kept)
            os.umask(umask)
            prepare()
            os.chdir(cwd)
            os.execvpe(argv[0], list(argv), env)  # noqa: S606 - no shell is wanted
        except Exception as error:  # noqa: BLE001 - whatever it is, the parent raises it
            message = f"{argv[0]}: {_text_of(error)}"
            os.write(2, f"{message}\n".encode())
            os.write(writer, message.encode())
        finally:
            os._exit(CANNOT_RUN)
    os.close(writer)
    return Spawned(pid, reader)


def receive(source: socket.socket, size: int, most: int) -> tuple[bytes, list[int]]:
    """Receive a message and descriptors, and make these non-inheritable, as `recv_fds` does not."""
    message, descriptors, *_ = socket.recv_fds(source, size, most)
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    return message, descriptors


def _detach(output: int, kept: Sequence[int]) -> None:
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for stream, target in ((0, null), (1, output), (2, output)):
        os.dup2(target, stream)
    for descriptor in kept:
        os.set_inheritable(descriptor, True)
    for number in _RESTORED:
        signal.signal(number, signal.SIG_DFL)


def _text_of(error: Exception) -> str:
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error) or repr(error)
