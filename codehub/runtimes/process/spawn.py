"""Start a program, with something of ours done before its first instruction.

`subprocess` could do it, but takes its time to be imported, and cannot tell what went wrong in between.
Standard library only (see `keeper`).
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
        """Return once it runs; OSError, in the child's own words, when it cannot."""
        with os.fdopen(self.report) as report:
            trouble = report.read()
        if trouble:
            os.waitpid(self.pid, 0)
            raise OSError(trouble)


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
    """Fork, prepare, run. Only for a process with one thread."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            _stand_alone(output, kept)
            os.umask(umask)
            prepare()
            os.chdir(cwd)
            os.execvpe(argv[0], list(argv), env)  # noqa: S606 - there is to be no shell
        except Exception as error:  # noqa: BLE001 - whatever it is, the parent raises it
            words = f"{argv[0]}: {_words(error)}"
            os.write(2, f"{words}\n".encode())
            os.write(writer, words.encode())
        finally:
            os._exit(CANNOT_RUN)
    os.close(writer)
    return Spawned(pid, reader)


def receive(source: socket.socket, size: int, most: int) -> tuple[bytes, list[int]]:
    """Words and descriptors that no program of ours inherits: `recv_fds` alone forgets what its flags say."""
    words, descriptors, *_ = socket.recv_fds(source, size, most)
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    return words, descriptors


def _stand_alone(output: int, kept: Sequence[int]) -> None:
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for stream, target in ((0, null), (1, output), (2, output)):
        os.dup2(target, stream)
    for descriptor in kept:
        os.set_inheritable(descriptor, True)
    for number in _RESTORED:
        signal.signal(number, signal.SIG_DFL)


def _words(error: Exception) -> str:
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error) or repr(error)
