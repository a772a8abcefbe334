"""Fake servers, and `codehub` as a process."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.services import free_port, kill_processes_of, short_temp_dir
from tests.waiting import PATIENCE, wait_for


@dataclass(frozen=True)
class Outcome:
    code: int
    stdout: str
    stderr: str


class FakeServer:
    """TCP server that sends the same bytes to every client, or nothing."""

    def __init__(self, answer: bytes = b"") -> None:
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._connections: list[socket.socket] = []
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):  # the listener was closed
            while True:
                connection, _ = self._listener.accept()
                self._connections.append(connection)
                if self._answer:
                    with contextlib.suppress(OSError):
                        connection.sendall(self._answer)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        for connection in self._connections:
            connection.close()


class Program:
    """Process of `codehub ...` with a temporary data directory."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        self.data_dir = short_temp_dir()
        self.log = self.data_dir / "stderr"
        inherited = {
            name: value for name, value in os.environ.items() if name not in ("DATABASE_URL", "REDIS_URL")
        }
        own = {"CODEHUB_DATA_DIR": str(self.data_dir / "data"), "PORT": str(free_port())}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "codehub", *arguments],
                env=inherited | own | dict(environment), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=log, text=True, start_new_session=True,
            )  # fmt: skip

    def stderr(self) -> str:
        return self.log.read_text()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(PATIENCE)
        wait_for(lambda: not kill_processes_of(self.data_dir), "every process of the program to end")
        if self.process.stdout is not None:
            self.process.stdout.close()
        self.process.wait()
        shutil.rmtree(self.data_dir)


@contextmanager
def program(*arguments: str, **environment: str) -> Iterator[Program]:
    running = Program(arguments, environment)
    try:
        yield running
    finally:
        running.close()


def outcome(arguments: Sequence[str], environment: Mapping[str, str]) -> Outcome:
    """Run a command to its end, and return its outcome."""
    with program(*arguments, **environment) as running:
        stdout, _ = running.process.communicate(timeout=PATIENCE)
        return Outcome(running.process.returncode, stdout, running.stderr())


def images_file(directory: Path, name: str, text: str) -> str:
    path = directory / f"{name}.toml"
    path.write_text(text)
    return str(path)
