"""The keeper: a small process of its own that starts one workspace's process tree and stays with it.

`python -m codehub.runtimes.keeper DIRECTORY`, with a `Request` on standard input. It locks the directory,
detaches itself from whoever started it, and writes state.json before there is anything to know about: a
crash at any point leaves either nothing running or something that state.json tells of. Being the tree's
subreaper it loses no process of it, however daemonised, and it ends only after the last of them.

It imports the standard library and modules of ours that do the same, to be up in a blink.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import selectors
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from codehub.runtimes.directory import LOG_BYTES, Directory, DirectoryGone, Ended, State, StateGarbled
from codehub.runtimes.leftovers import Isolation, LeftoversAlive, end_leftovers
from codehub.runtimes.procfs import ProcessId, boot_id, descendants

STARTED, ALREADY_RUNNING, GONE = "started", "already running", "gone"
_CANNOT_RUN = 126
_PR_SET_CHILD_SUBREAPER = 36
_OOM_SCORE_ADJUSTMENT = "500"


@dataclass(frozen=True)
class Request:
    workspace_id: str
    op_id: str
    image: str
    ready_path: str
    isolation: str
    uid: int | None
    home: str
    argv: list[str]
    env: dict[str, str]
    cwd: str
    umask: int
    pids: int | None
    grace_seconds: float
    spare_depth: int
    """How many levels of the tree are the sandbox itself: they get no SIGTERM, they end with the rest."""
    files: dict[str, str] = field(default_factory=dict)


def main() -> None:
    # Some event loops let descriptors through to their children: a starter that waits for the end of our
    # output would wait for the workspace's, and its sockets would stay open for as long.
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    directory = Directory(Path(sys.argv[1]))
    request = Request(**json.load(sys.stdin))
    try:
        with directory.locked() as lock:
            print(ALREADY_RUNNING if lock is None else _launch(directory, request))
    except DirectoryGone:
        print(GONE)
    except (LeftoversAlive, OSError) as error:
        print(error)


def _launch(directory: Directory, request: Request) -> str:
    """Fork the keeper, which inherits the lock, and return what it reports once its child is there."""
    _end_predecessor(directory, request)
    directory.prepare(request.uid, request.isolation == Isolation.USER, request.files)
    _give_home(request)
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.close(reader)
        Keeper(directory, request).run(report_to=writer)
        sys.exit()
    os.close(writer)
    with os.fdopen(reader) as report:
        return report.read() or f"the keeper ended at once: {directory.last_output(5)}"


def _end_predecessor(directory: Directory, request: Request) -> None:
    """We hold the lock, so an earlier keeper is dead; what it kept may not be yet."""
    try:
        state = directory.read_state()
    except StateGarbled:
        state = None
    end_leftovers(request.workspace_id, state, request.isolation, request.uid)


def _give_home(request: Request) -> None:
    """The home itself belongs to the workspace's user; without a sandbox nobody else may look into it."""
    home = Path(request.home)
    if request.uid is not None and home.lstat().st_uid != request.uid:
        os.chown(home, request.uid, request.uid, follow_symlinks=False)
    if request.isolation == Isolation.USER:
        home.chmod(home.stat().st_mode & 0o700)


class Keeper:
    def __init__(self, directory: Directory, request: Request) -> None:
        self._directory = directory
        self._request = request
        self._stopping = False
        self._kill_at: float | None = None
        self._code: int | None = None
        self._selector = selectors.DefaultSelector()
        self._log = _Log(directory)

    def run(self, report_to: int) -> None:
        os.setsid()
        os.chdir("/")
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._log.adopt_standard_streams()
        self._listen_to_signals()
        me = ProcessId.of(os.getpid())
        assert me is not None
        request = self._request
        state = State(
            request.op_id, request.image, request.ready_path, request.isolation, request.uid, boot_id(), me
        )
        self._directory.write_state(state)
        try:
            child = self._spawn()
        except OSError as error:
            self._directory.write_state(replace(state, ended=Ended(_CANNOT_RUN, stopped=False)))
            self._report(report_to, f"{request.argv[0]}: {error.strerror}")
            return
        state = replace(state, child=ProcessId.of(child.pid))
        self._directory.write_state(state)
        self._report(report_to, STARTED)
        self._stay_until_all_have_ended(child)
        self._directory.write_state(replace(state, ended=Ended(self._code or 0, self._stopping)))

    def _report(self, to: int, words: str) -> None:
        """Whoever asked may be dead by now; that is no reason for the workspace to die as well."""
        with contextlib.suppress(BrokenPipeError):
            os.write(to, words.encode())
        os.close(to)

    def _spawn(self) -> subprocess.Popen[bytes]:
        request = self._request
        child = subprocess.Popen(
            request.argv,
            env=request.env,
            cwd=request.cwd,
            umask=request.umask,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=self._confine,  # the keeper has one thread, so this is safe
        )
        assert child.stdout is not None
        os.set_blocking(child.stdout.fileno(), False)
        self._selector.register(child.stdout, selectors.EVENT_READ)
        return child

    def _confine(self) -> None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if self._request.pids is not None:
            resource.setrlimit(resource.RLIMIT_NPROC, (self._request.pids, self._request.pids))
        # When memory runs out, an IDE goes before CodeHub's own database does.
        with contextlib.suppress(PermissionError):
            Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE_ADJUSTMENT)

    def _listen_to_signals(self) -> None:
        receiver, sender = socket.socketpair()
        receiver.setblocking(False)
        sender.setblocking(False)
        self._wakeups = (receiver, sender)
        signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._ask_to_stop)
        for ignored in (signal.SIGHUP, signal.SIGINT):
            signal.signal(ignored, signal.SIG_IGN)
        self._selector.register(receiver, selectors.EVENT_READ)

    def _ask_to_stop(self, *_: object) -> None:
        self._stopping = True

    def _stay_until_all_have_ended(self, child: subprocess.Popen[bytes]) -> None:
        while not self._reap(child):
            if self._code is not None:
                self._kill()
            elif self._stopping and self._kill_at is None:
                self._terminate()
            elif self._kill_at is not None and time.monotonic() >= self._kill_at:
                self._kill()
            for key, _ in self._selector.select(self._patience()):
                self._consume(key)
        for key in list(self._selector.get_map().values()):
            while self._consume(key):
                pass

    def _patience(self) -> float | None:
        if self._code is not None:
            return 0.02
        return None if self._kill_at is None else max(0.02, self._kill_at - time.monotonic())

    def _reap(self, child: subprocess.Popen[bytes]) -> bool:
        """Collect whoever has ended; True when nobody is left. The tree's orphans are our children too."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return True
            if pid == 0:
                return False
            if pid == child.pid:
                code = os.waitstatus_to_exitcode(status)
                self._code = child.returncode = code if code >= 0 else 128 - code

    def _terminate(self) -> None:
        """Ask every process of the workspace; when there is none yet to ask, do not wait for one."""
        asked = [
            process
            for process, depth in descendants(os.getpid()).items()
            if depth > self._request.spare_depth and process.send(signal.SIGTERM)
        ]
        self._kill_at = time.monotonic() + (self._request.grace_seconds if asked else 0)

    def _kill(self) -> None:
        for process in descendants(os.getpid()):
            process.send(signal.SIGKILL)

    def _consume(self, key: selectors.SelectorKey) -> bool:
        """Take one piece (an endless writer must not keep us from a signal); False when there is none."""
        try:
            data = os.read(key.fd, 65536)
        except BlockingIOError:
            return False
        if not data:
            self._selector.unregister(key.fileobj)
        elif key.fileobj is not self._wakeups[0]:
            self._log.write(data)
        return bool(data)


class _Log:
    """The tree's output, in two files of at most `LOG_BYTES` each."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._lost = 0
        self._open()

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._descriptor = os.open(self._directory.log_file, flags, 0o600)
        self._size = os.fstat(self._descriptor).st_size

    def adopt_standard_streams(self) -> None:
        """Let go of the starter's streams; what the keeper itself has to complain about joins the log."""
        null = os.open(os.devnull, os.O_RDWR)
        for stream, target in ((0, null), (1, self._descriptor), (2, self._descriptor)):
            os.dup2(target, stream)
        os.close(null)

    def write(self, data: bytes) -> None:
        """A full disk costs output, never the workspace: its writers must not block on us."""
        try:
            if self._size + len(data) > LOG_BYTES:
                self._rotate()
            if self._lost:
                data = b"[%d bytes of output were lost: the disk was full]\n" % self._lost + data
            self._size += os.write(self._descriptor, data)
            self._lost = 0
        except OSError:
            self._lost += len(data)

    def _rotate(self) -> None:
        full = self._descriptor
        self._directory.log_file.replace(self._directory.older_log_file)
        self._open()
        os.close(full)


if __name__ == "__main__":
    main()
