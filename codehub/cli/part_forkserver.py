"""Fork server of the parts of `codehub up` (ADR 0017).

It is one process with every module loaded, one thread, no event loop and no connection. A part
therefore starts with loaded modules and nothing else, however often it is restarted, and all parts
share the memory of those modules.

Each request is one message on a Unix socket: a JSON object with the part's name and environment,
and the descriptors of its standard output, its standard error and its status socket. It may name
the user that the part becomes once it has opened what only root may open. The status socket
receives the pidfd of the new process and then its exit code. The server ends when its request
socket closes, and the kernel ends the parts with it.
"""

import contextlib
import json
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import typer

from codehub.cli.part_users import PartUser
from codehub.host.parent_death import die_with_parent
from codehub.host.processes import set_command_line

MAX_REQUEST_BYTES = 1 << 20
NAME = "part-forkserver"


@dataclass(frozen=True)
class _ForkedPart:
    pid: int
    status: socket.socket


def main() -> None:
    """Serve requests from standard input. A supervisor replaces a killed server this way."""
    from codehub.cli.part_main import load_all, prepare

    serve(socket.socket(fileno=os.dup(0)), load_all(docker=False), prepare)


def serve(
    requests: socket.socket, parts: Mapping[str, Callable[..., None]], prepare: Callable[[], None]
) -> None:
    """Fork a part for each request and report how each one ends, until the request socket closes.

    `prepare` runs before each fork, in the environment of the new part. The parts share what it
    loads.
    """
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1):
        os.dup2(null, stream)
    set_command_line("codehub", NAME)
    children: dict[int, _ForkedPart] = {}
    poller = select.poll()
    poller.register(requests, select.POLLIN)
    while True:
        for descriptor, _ in poller.poll():
            if descriptor != requests.fileno():
                poller.unregister(descriptor)
                _report_exit(descriptor, children.pop(descriptor))
                continue
            message, descriptors, *_ = socket.recv_fds(requests, MAX_REQUEST_BYTES, 3)
            if not message:
                return
            request = json.loads(message)
            os.environ.clear()
            os.environ.update(request["environment"])
            prepare()
            part = parts[request["name"]]
            if user := request.get("user"):
                part = partial(part, PartUser(**user))
            pidfd, child = _fork_part(part, request["name"], descriptors)
            children[pidfd] = child
            poller.register(pidfd, select.POLLIN)


def _fork_part(part: Callable[[], None], name: str, descriptors: list[int]) -> tuple[int, _ForkedPart]:
    *streams, status = descriptors
    hook = die_with_parent(signal.SIGTERM)
    pid = os.fork()
    if pid == 0:
        hook()
        _run_part(part, name, streams)
    for stream in streams:
        os.close(stream)
    pidfd = os.pidfd_open(pid)
    child = _ForkedPart(pid, socket.socket(fileno=status))
    with contextlib.suppress(OSError):  # a supervisor that has ended closes the request socket as well
        socket.send_fds(child.status, [str(pid).encode()], [pidfd])
    return pidfd, child


def _report_exit(pidfd: int, child: _ForkedPart) -> None:
    _, wait_status = os.waitpid(child.pid, 0)
    os.close(pidfd)
    with child.status, contextlib.suppress(OSError):
        child.status.send(str(os.waitstatus_to_exitcode(wait_status)).encode())


def _run_part(part: Callable[[], None], name: str, streams: list[int]) -> None:
    """Run a part in this process and exit.

    A new session keeps a terminal's Ctrl-C from the part.
    """
    code = 1
    try:
        os.setsid()
        for standard, stream in enumerate(streams, start=1):
            os.dup2(stream, standard)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        os.chdir("/")
        set_command_line("codehub", name)
        part()
        code = 0
    except typer.Exit as end:
        code = end.exit_code
    except BaseException:  # noqa: BLE001 - the process ends here, and its log has the reason
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
