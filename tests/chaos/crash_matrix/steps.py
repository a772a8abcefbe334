"""Named steps of a process, one for each external effect, at which it can be killed.

The functions that change files, processes, objects and rows are wrapped; their callers are the real
code. A step's name contains no ids, so that it is the same in every run. A number distinguishes
repetitions.
"""

import os
import re
import signal
import socket
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import obstore

BEFORE, AFTER = "before", "after"
COORDINATOR, JOB, REQUEST = "coordinator", "job", "request"
"""Processes that have steps; REQUEST stands for the S3 requests of a job."""
CRASHED = "crashed"
PIDS = {COORDINATOR: "coordinator.pid", JOB: "job.pid"}
"""Process -> the file below the root with its process id."""

_IDS = (
    (re.compile(r"volumes/users/[^/]+/workspaces/[^/]+"), "ws"),
    (re.compile(r"[0-9a-z]{26}"), "*"),
    (re.compile(r"-[0-9a-f]{8}\b"), "-*"),
    (re.compile(r"\btmp\w{8}\b"), "tmp"),  # before the digits, which are random here as well
    (re.compile(r"\d{6,}"), "*"),
    (re.compile(r"archives/\*/\*/"), "archives/"),
    # Trees that are removed entry by entry, in the order of the file system.
    (re.compile(r"(\.(?:forgotten|deleted)-[^/]*)/.*"), r"\1/..."),
)


class CrashPoint(NamedTuple):
    """Moment right before or right after one step of one process."""

    process: str
    step: str
    side: str


@dataclass(frozen=True)
class Instructions:
    """Instructions for one process: what to record and where to crash."""

    process: str
    root: str
    journal: str
    first_step: str = ""
    """Earlier steps are not recorded. If empty, every step is."""
    step: str = ""
    side: str = ""
    victims: tuple[str, ...] = ()
    """Processes to kill at the step: COORDINATOR, JOB or both."""
    stays_paused: bool = False
    """Whether a surviving job stays paused for good, instead of until it is adopted."""
    endpoint: str = ""
    """S3 endpoint of a job, if not the coordinator's."""


def kill(root: Path, victims: Iterable[str]) -> None:
    """Send SIGKILL to each victim, to the calling process last."""
    pids = [int((root / PIDS[victim]).read_text()) for victim in victims]
    for pid in sorted(pids, key=lambda pid: pid == os.getpid()):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


class Steps:
    """Recorder of this process's steps in the journal, with a crash at one of them."""

    def __init__(self, instructions: Instructions, die: Callable[[], None], prefix: str = "") -> None:
        self._instructions = instructions
        self._die = die
        self._prefix = prefix
        self._seen: Counter[str] = Counter()
        self._begun = not instructions.first_step
        self._lock = threading.Lock()
        self._journal = os.open(
            instructions.journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600
        )

    @contextmanager
    def at(self, name: str) -> Iterator[None]:
        """Record the step around the block. A retry of a failed step keeps its number."""
        step = self._numbered(name)
        if step is None:
            yield
            return
        self._reach(step, BEFORE)
        try:
            yield
        except BaseException:
            with self._lock:
                self._seen[self._prefix + name] -= 1
            raise
        self._reach(step, AFTER)

    def _numbered(self, name: str) -> str | None:
        name = self._prefix + name
        with self._lock:
            self._begun = self._begun or name == self._instructions.first_step
            if not self._begun:
                return None
            self._seen[name] += 1
            return name if self._seen[name] == 1 else f"{name} #{self._seen[name]}"

    def _reach(self, step: str, side: str) -> None:
        self._write(self._instructions.process, step, side)
        if (step, side) == (self._instructions.step, self._instructions.side):
            self._write(CRASHED, step, side)
            self._die()

    def _write(self, *fields: str) -> None:
        line = "\t".join(re.sub(r"[\t\n]", "?", field) for field in fields)
        os.write(self._journal, f"{line}\n".encode(errors="backslashreplace"))

    def name_of(self, path: object, dir_fd: int | None = None) -> str | None:
        """Return a path below the root without its ids, or None for any other path."""
        text = os.fsdecode(path)  # type: ignore[arg-type]
        if dir_fd is not None:
            text = os.path.join(_readlink(f"/proc/self/fd/{dir_fd}"), text)
        if not text.startswith(f"{self._instructions.root}/"):
            return None
        name = text.removeprefix(f"{self._instructions.root}/")
        for pattern, word in _IDS:
            name = pattern.sub(word, name)
        return name

    def watch_files(self) -> None:
        for verb in ("mkdir", "rmdir", "unlink", "remove", "chmod", "chown"):
            self._wrap(os, verb, self._on_path(verb))
        for verb in ("rename", "replace", "link"):
            self._wrap(os, verb, self._on_target(verb))
        self._wrap(os, "open", self._on_creation)
        self._wrap(signal, "pidfd_send_signal", lambda _fd, number, *_: f"send {number.name}")
        self._wrap(subprocess.Popen, "__init__", self._on_spawn)
        self._wrap(socket, "send_fds", lambda *_, **__: "request a keeper")

    def watch_objects(self) -> None:
        self._wrap(obstore, "delete", lambda _store, path, **_: f"delete {_shortened(path)}")
        real = obstore.put

        def put(store: Any, path: str, content: Any, **options: Any) -> Any:
            if not isinstance(content, bytes):
                content = self._chunks(content)
            with self.at(f"put {_shortened(path)}"):
                return real(store, path, content, **options)

        obstore.put = put

    def _chunks(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            with self.at("hand over a chunk"):
                yield chunk

    def _wrap(self, place: Any, name: str, label: Callable[..., str | None]) -> None:
        real = getattr(place, name)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            step = label(*args, **kwargs)
            if step is None:
                return real(*args, **kwargs)
            with self.at(step):
                return real(*args, **kwargs)

        setattr(place, name, wrapped)

    def _on_path(self, verb: str) -> Callable[..., str | None]:
        def label(path: object, *_: object, dir_fd: int | None = None, **__: object) -> str | None:
            name = None if isinstance(path, int) else self.name_of(path, dir_fd)
            return None if name is None else f"{verb} {name}"

        return label

    def _on_target(self, verb: str) -> Callable[..., str | None]:
        def label(source: object, target: object, **_: object) -> str | None:
            names = self.name_of(source), self.name_of(target)
            if None in names:
                return None
            return f"{verb} {names[0]} -> {os.path.basename(names[1] or '')}"

        return label

    def _on_creation(
        self, path: object, flags: int, *_: object, dir_fd: int | None = None, **__: object
    ) -> str | None:
        if not flags & os.O_CREAT or os.path.lexists(path):  # type: ignore[arg-type]
            return None
        name = self.name_of(path, dir_fd)
        return None if name is None else f"create {name}"

    def _on_spawn(self, _process: object, command: list[object], *_: object, **__: object) -> str:
        words = [os.fsdecode(word) for word in command]  # type: ignore[arg-type]
        if "codehub.storage.jobs.program" in words:
            return "spawn the job"
        if "codehub.runtimes.process.forkserver" in words:
            return "spawn the fork server"
        below = [name for word in words[1:] if (name := self.name_of(word)) is not None]
        return " ".join(["spawn", Path(words[0]).name, *below])


def _shortened(path: object) -> str:
    return "archive" if not isinstance(path, str) else path.rpartition("/")[2]


def _readlink(path: str) -> str:
    try:
        return os.readlink(path)
    except FileNotFoundError:
        return ""
