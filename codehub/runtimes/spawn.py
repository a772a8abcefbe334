"""Start a program, with something of ours done before its first instruction.

`subprocess` could do it, but takes its time to be imported, and cannot tell what went wrong in between.
Standard library only (see `keeper`).
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping, Sequence

CANNOT_RUN = 126
_RESTORED = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGHUP, signal.SIGINT)


def spawn(
    argv: Sequence[str],
    env: Mapping[str, str],
    output: int,
    prepare: Callable[[], None],
    *,
    cwd: str = "/",
    umask: int = 0o022,
    kept: Sequence[int] = (),
) -> int:
    """The PID, once the program runs; OSError, in the child's own words, when it cannot. One thread only."""
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
            os.write(writer, f"{argv[0]}: {_words(error)}".encode())
        finally:
            os._exit(CANNOT_RUN)
    os.close(writer)
    with os.fdopen(reader) as report:
        trouble = report.read()
    if trouble:
        os.waitpid(pid, 0)
        raise OSError(trouble)
    return pid


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
