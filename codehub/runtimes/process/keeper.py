"""The keeper: a small process of its own that starts one workspace's process tree and stays with it.

It locks the workspace's directory, detaches itself from whoever started it, and writes state.json before
there is anything to know about: a crash at any point leaves either nothing running or something that
state.json tells of. Being the tree's subreaper it loses no process of it, however daemonised, and it ends
only after the last of them.

Keepers are born of the nursery. They use the standard library and modules of ours that do the same.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import os
import resource
import selectors
import signal
import socket
import time
from dataclasses import replace
from pathlib import Path

from codehub.host.processes import ProcessId, boot_id, descendants
from codehub.runtimes.open_files import open_files
from codehub.runtimes.process import cgroups, seccomp, tmpfs
from codehub.runtimes.process.keeper_request import KeeperRequest
from codehub.runtimes.process.keyring import leave_session_keyring
from codehub.runtimes.process.network import Network, Uplink, enter
from codehub.runtimes.process.output_files import READ_BYTES, Output, ReadBudget
from codehub.runtimes.process.port_broker import PortBroker
from codehub.runtimes.process.spawn import CANNOT_RUN, spawn
from codehub.runtimes.process.state_directory import ExitRecord, State, StateDirectory

STARTED, ALREADY_RUNNING, GONE = "started", "already running", "gone"
_PR_SET_CHILD_SUBREAPER = 36
_OOM_SCORE_ADJUSTMENT = "500"


class Keeper:
    def __init__(self, directory: StateDirectory, request: KeeperRequest) -> None:
        self._directory = directory
        self._request = request
        self._stopping = False
        self._kill_at: float | None = None
        self._code: int | None = None
        self._groups: cgroups.GroupSettings = {}
        self._network: Network | None = None
        self._door: PortBroker | None = None
        self._selector = selectors.DefaultSelector()
        self._log = Output(directory)
        self._output: int | None = None
        """The end of the pipe that the workspace prints into."""
        self._budget = ReadBudget(time.monotonic())
        self._read_again_at: float | None = None

    def run(self, report_to: int) -> None:
        os.setsid()
        os.chdir("/")
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._log.adopt_standard_streams()
        self._listen_to_signals()
        state = self._first_state()
        self._directory.write_state(state)
        self._leave_service()
        try:
            self._make_groups()
            child = self._spawn()
        except OSError as error:
            self._code = CANNOT_RUN
            self._stay(state, child=0)
            self._report(report_to, str(error))
            return
        state = replace(state, child=ProcessId.of(child))
        self._directory.write_state(state)
        self._report(report_to, STARTED)
        self._stay(state, child)

    def _stay(self, state: State, child: int) -> None:
        self._wait_until_all_have_ended(child)
        self._directory.write_state(replace(state, ended=self._ended()))
        cgroups.remove(self._groups)

    def _first_state(self) -> State:
        me = ProcessId.of(os.getpid())
        assert me is not None
        request = self._request
        return State(
            op_id=request.op_id,
            image=request.image,
            ready_path=request.ready_path,
            isolation=request.isolation,
            uid=request.uid,
            boot_id=boot_id(),
            keeper=me,
            groups=list(request.groups),
        )

    def _ended(self) -> ExitRecord:
        exhausted = not self._stopping and cgroups.out_of_memory_kills(self._groups) > 0
        return ExitRecord(self._code or 0, self._stopping, self._request.memory_bytes if exhausted else None)

    def _report(self, to: int, words: str) -> None:
        """Whoever asked may be dead by now; that is no reason for the workspace to die as well."""
        with contextlib.suppress(BrokenPipeError):
            os.write(to, words.encode())
        os.close(to)

    def _leave_service(self) -> None:
        for group in self._request.keeper_groups:
            try:
                cgroups.create({group: {}})
                cgroups.join([group])
            except OSError as error:
                self._say(f"it may end when CodeHub's service is restarted: {error}")

    def _make_groups(self) -> None:
        """What was possible when CodeHub looked may not be any more; the workspace starts with what still is.

        A number that the kernel does not take is another matter: whoever chose it is told.
        """
        self._groups, troubles = cgroups.create_available(self._request.groups)
        for trouble in troubles:
            if isinstance(trouble, cgroups.LimitRejected):
                raise OSError(f"{trouble}: see `cpus`, `memory`, `pids` and `disk_bandwidth` of its image")
        if troubles:
            words = "; ".join(map(str, troubles))
            self._say(f"not all caps of its image hold: {words}")

    def _say(self, words: str) -> None:
        self._log.write(f"[codehub: {words}]\n".encode())

    def _spawn(self) -> int:
        """The child joins its groups, which takes its time, while its network is made."""
        request = self._request
        output, theirs = os.pipe()
        inner, outer = socket.socketpair()
        with inner, outer:

            def confine() -> None:
                outer.close()
                self._confine(inner)

            argv, kept = self._command()
            child = spawn(argv, request.env, theirs, confine, cwd=request.cwd, umask=request.umask, kept=kept)
            for descriptor in (theirs, *kept):
                os.close(descriptor)
            if request.uplink is not None:
                self._make_network(request.uplink, outer)
            child.wait()
        if self._network is not None:
            self._open_door(self._network)
        os.set_blocking(output, False)
        self._selector.register(output, selectors.EVENT_READ)
        self._output = output
        return child.pid

    def _command(self) -> tuple[list[str], list[int]]:
        """Return the command line, and the descriptors that it names.

        The workspace can read bwrap's command line, so bwrap reads its options, which name host paths, from a
        descriptor. bwrap itself needs calls that the filter denies, and puts it on just before the command.
        """
        program, *rest = self._request.argv
        if not self._is_sandboxed:
            return [program, *rest], []
        contents = {"--args": b"".join(os.fsencode(option) + b"\0" for option in self._request.options)}
        if self._request.seccomp:
            contents["--seccomp"] = base64.b64decode(self._request.seccomp)
        given = {option: _in_memory(content) for option, content in contents.items()}
        arguments = [part for option, descriptor in given.items() for part in (option, str(descriptor))]
        return [program, *arguments, *rest], [*given.values()]

    @property
    def _is_sandboxed(self) -> bool:
        return bool(self._request.options)

    def _make_network(self, uplink: Uplink, door: socket.socket) -> None:
        self._network = Network(uplink)
        self._network.admit(door)
        with contextlib.suppress(ProcessLookupError):  # the child tells what became of the helper
            cgroups.join(self._groups, self._network.helper)

    def _open_door(self, network: Network) -> None:
        """Without it the workspace's ports are closed, and the rest of it works."""
        namespaces = network.let_go()
        try:
            self._door = PortBroker(self._directory.port_broker_socket, namespaces, self._selector)
        except OSError as error:
            namespaces.close()
            self._say(f"its ports cannot be reached: {error}")
            return
        if self._request.gateway_group is not None:
            with contextlib.suppress(OSError):  # the coordinator repeats it with each look
                self._directory.share(self._request.gateway_group)

    def _confine(self, door: socket.socket) -> None:
        """The last that is done before the workspace's first instruction, in its own process."""
        leave_session_keyring()
        cgroups.join(self._groups)
        self._limit()
        # When memory runs out, an IDE goes before CodeHub's own database does.
        with contextlib.suppress(PermissionError):
            Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE_ADJUSTMENT)
        if self._request.uplink is not None:
            enter(door, self._request.uplink)
        if self._request.options:
            with contextlib.suppress(OSError):  # bwrap's own take their place
                tmpfs.mount(self._directory.scratch, self._request.memory_bytes)
        if self._request.seccomp and not self._is_sandboxed:
            seccomp.install(base64.b64decode(self._request.seccomp))

    def _limit(self) -> None:
        """Where no group caps them: RLIMIT_DATA holds for each process, RLIMIT_NPROC for each user.

        RLIMIT_AS would be no help: Node reserves far more addresses than it ever uses.
        """
        request = self._request
        limits = {resource.RLIMIT_CORE: 0, resource.RLIMIT_NOFILE: open_files()}
        capped = {name for settings in self._groups.values() for name in settings}
        if not capped & {"memory.max", "memory.limit_in_bytes"}:
            limits[resource.RLIMIT_DATA] = request.memory_bytes
        if request.uid is not None and "pids.max" not in capped:
            limits[resource.RLIMIT_NPROC] = request.pids
        for limit, value in limits.items():
            resource.setrlimit(limit, (value, value))

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

    def _wait_until_all_have_ended(self, child: int) -> None:
        while not self._reap(child):
            if self._code is not None:
                self._kill()
            elif self._stopping and self._kill_at is None:
                self._terminate()
            elif self._kill_at is not None and time.monotonic() >= self._kill_at:
                self._kill()
            for key, _ in self._selector.select(self._patience()):
                if isinstance(key.data, PortBroker):
                    key.data.answer()
                elif key.fileobj is self._wakeups[0]:
                    self._wakeups[0].recv(4096)
                else:
                    self._read_within_budget(key.fd)
            self._read_again_in_time()
        self._close_door()
        if self._output is not None:
            while self._read(self._output):
                pass

    def _patience(self) -> float | None:
        if self._code is not None:
            return 0.02
        times = [at for at in (self._kill_at, self._read_again_at) if at is not None]
        return max(0.02, min(times) - time.monotonic()) if times else None

    def _reap(self, child: int) -> bool:
        """Collect whoever has ended; True when nobody is left. The tree's orphans are our children too."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return True
            if pid == 0:
                return False
            if pid == child:
                code = os.waitstatus_to_exitcode(status)
                self._code = code if code >= 0 else 128 - code
            elif self._network is not None and pid == self._network.helper:
                self._lose_helper(self._network)
            elif self._door is not None:
                self._door.child_ended(pid)

    def _lose_helper(self, network: Network) -> None:
        self._network = None
        if self._code is None:
            words = network.helper_words()
            self._say(f"the way to the network has ended, until the workspace is started again: {words}")

    def _tree(self) -> dict[ProcessId, int]:
        helper = self._network.helper if self._network is not None else None
        return {
            process: depth for process, depth in descendants(os.getpid()).items() if process.pid != helper
        }

    def _terminate(self) -> None:
        """Ask every process of the workspace; when there is none yet to ask, do not wait for one."""
        asked = [
            process
            for process, depth in self._tree().items()
            if depth > self._request.sandbox_depth and process.send(signal.SIGTERM)
        ]
        self._kill_at = time.monotonic() + (self._request.grace_seconds if asked else 0)

    def _kill(self) -> None:
        self._close_door()
        cgroups.forbid_forks(self._groups)
        tree = self._tree()
        for process in tree:
            process.send(signal.SIGKILL)
        if not tree:
            self._end_helper()

    def _close_door(self) -> None:
        if self._door is not None:
            self._door.close()

    def _end_helper(self) -> None:
        """The tree is gone, and its network with it; whom we miss is still our child, and is waited for."""
        if self._network is not None:
            os.kill(self._network.helper, signal.SIGKILL)

    def _read_within_budget(self, output: int) -> None:
        """Take one piece: an endless writer must not keep us from a signal. Beyond the budget it waits."""
        count = self._read(output)
        if count is not None:
            self._read_again_at = self._budget.spend(count, time.monotonic())
        if count is None or self._read_again_at is not None:
            self._selector.unregister(output)

    def _read_again_in_time(self) -> None:
        at = self._read_again_at
        if self._output is not None and at is not None and time.monotonic() >= at:
            self._read_again_at = None
            self._selector.register(self._output, selectors.EVENT_READ)

    def _read(self, output: int) -> int | None:
        """Move one piece of output to its file; return its size, or None at the end of all output."""
        try:
            data = os.read(output, READ_BYTES)
        except BlockingIOError:
            return 0
        self._log.write(data)
        return len(data) or None


def _in_memory(content: bytes) -> int:
    """Return a descriptor from which the content can be read."""
    descriptor = os.memfd_create("content")
    os.write(descriptor, content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
