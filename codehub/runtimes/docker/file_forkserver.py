"""The fork server for file agents in containers (ADR 0036): see `fork_loop`.

Standard library only. A forked process enters the container as its keeper would on the process
runtime: only root can do that.
"""

from __future__ import annotations

import base64
import contextlib
import resource
import socket

from codehub.runtimes.docker.file_request import FileAgentRequest
from codehub.runtimes.files.channel import Channel, ClientGone
from codehub.runtimes.files.protocol import FileCode, FileRefused
from codehub.runtimes.process import file_broker, fork_loop
from codehub.runtimes.process.workspace_process import ExecSettings

_UMASK = 0o022
_REQUEST_SECONDS = 10.0


def main() -> None:
    fork_loop.run("codehub-files-forkserver", serve)


def serve(connection: socket.socket) -> None:
    connection.settimeout(_REQUEST_SECONDS)
    with connection.makefile() as reader:
        request = FileAgentRequest.from_line(reader.readline())
    if not request.init.is_alive():
        with contextlib.suppress(ClientGone):
            Channel(connection).send_error(FileRefused(FileCode.FAILED, "the workspace has stopped"))
        return
    file_broker.serve(connection, _settings(request))


def _settings(request: FileAgentRequest) -> ExecSettings:
    return ExecSettings(
        child=request.init.pid,
        sandbox_depth=0,
        uid=request.uid,
        env={"HOME": request.home},
        umask=_UMASK,
        groups={group: {} for group in request.groups},
        limits={resource.RLIMIT_CORE: 0, resource.RLIMIT_NOFILE: request.open_files},
        seccomp=base64.b64decode(request.seccomp),
    )


if __name__ == "__main__":
    main()
