"""The keeper: a small process that starts and supervises one workspace's process tree (ADR 0030).

It holds the lock of the workspace's state directory, detaches from the process that started it, and
writes state.json before it starts anything. So a crash at any point leaves either nothing running,
or processes that state.json names. As the subreaper of the tree it keeps even daemonised processes
below it, and it exits only after the last of them.

The fork server forks keepers (ADR 0011). They import only the standard library, and modules that do
the same.
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

from codehub.domain.ports import PORT_BROKER_SOCKET
from codehub.host.processes import ProcessId, boot_id, descendants
from codehub.runtimes.exec_directory import make_shared_directory
from codehub.runtimes.open_files import open_files
from codehub.runtimes.process import cgroups, seccomp, tmpfs
from codehub.runtimes.process.exec_broker import ExecBroker
from codehub.runtimes.process.keeper_request import KeeperRequest
from codehub.runtimes.process.keyring import leave_session_keyring
from codehub.runtimes.process.network import Network, Uplink, enter
from codehub.runtimes.process.output_files import READ_BYTES, Output, ReadBudget
from codehub.runtimes.process.port_broker import PortBroker
from codehub.runtimes.process.spawn import CANNOT_RUN, spawn
from codehub.runtimes.process.state_directory import ExitRecord, KeeperState, StateDirectory
from codehub.runtimes.process.workspace_process import ExecSettings

STARTED, ALREADY_RUNNING, GONE = "started", "already running", "gone"
_PR_SET_CHILD_SUBREAPER = 36
_OOM_SCORE_ADJUSTMENT = "500"
_RECORD_SECONDS = 2.0
"""How long monitors have to record the end of their commands."""


def longest_stop(grace_seconds: float) -> float:
    """Return how many seconds after SIGTERM a keeper kills the last process at the latest."""
    return grace_seconds + _RECORD_SECONDS


class Keeper:
    def __init__(self, directory: StateDirectory, request: KeeperRequest) -> None:
        self._directory = directory
        self._request = request
        self._stopping = False
        self._stop_until = 0.0
        """End of the grace period, in which first the commands end and then the IDE."""
        self._kill_at: float | None = None
        self._terminate_ide_at: float | None = None
        """When the IDE is to end, though commands still run."""
        self._kill_monitors_at: float | None = None
        self._code: int | None = None
        self._groups: cgroups.GroupSettings = {}
        self._network: Network | None = None
        self._port_broker: PortBroker | None = None
        self._exec_broker: ExecBroker | None = None
        self._selector = selectors.DefaultSelector()
        executions = Path(request.executions)
        make_shared_directory(executions)
        self._shared_port_broker_socket = executions / PORT_BROKER_SOCKET
        """For the access part. The directory's group may connect."""
        self._shared_port_broker_socket.unlink(missing_ok=True)
        self._log = Output(directory, executions)
        self._output: int | None = None
        """The read end of the pipe for the workspace's output."""
        self._budget = ReadBudget(time.monotonic())
        self._read_again_at: float | None = None

    def run(self, report_to: int) -> None:
        os.setsid()
        os.chdir("/")
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._log.adopt_standard_streams()
        self._install_signal_handlers()
        state = self._first_state()
        self._directory.write_state(state)
        self._leave_service()
        try:
            self._create_groups()
            child = self._spawn()
        except OSError as error:
            self._code = CANNOT_RUN
            self._supervise(state, child=0)
            self._report(report_to, str(error))
            return
        state = replace(state, child=ProcessId.of(child))
        self._directory.write_state(state)
        self._report(report_to, STARTED)
        self._supervise(state, child)

    def _supervise(self, state: KeeperState, child: int) -> None:
        self._wait_for_all_processes(child)
        self._directory.write_state(replace(state, ended=self._ended()))
        cgroups.remove(self._groups)

    def _first_state(self) -> KeeperState:
        me = ProcessId.of(os.getpid())
        assert me is not None
        request = self._request
        return KeeperState(
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

    def _report(self, to: int, message: str) -> None:
        """Report the outcome. If the caller is dead by now, the workspace runs on."""
        with contextlib.suppress(BrokenPipeError):
            os.write(to, message.encode())
        os.close(to)

    def _leave_service(self) -> None:
        """Leave the groups of CodeHub's systemd service, so that its restart ends no workspace."""
        for group in self._request.keeper_groups:
            try:
                cgroups.create({group: {}})
                cgroups.join([group])
            except OSError as error:
                self._log_message(f"it may end when CodeHub's service is restarted: {error}")

    def _create_groups(self) -> None:
        """Create the control groups, as far as that is still possible.

        A number that the kernel rejects is an error of the image's configuration and fails the
        start.
        """
        self._groups, errors = cgroups.create_available(self._request.groups)
        for error in errors:
            if isinstance(error, cgroups.LimitRejected):
                raise OSError(f"{error}: see `cpus`, `memory`, `pids` and `disk_bandwidth` of its image")
        if errors:
            self._log_message(f"not all caps of its image hold: {'; '.join(map(str, errors))}")

    def _log_message(self, message: str) -> None:
        self._log.write(f"[codehub: {message}]\n".encode())

    def _spawn(self) -> int:
        """Start the workspace's first process.

        Its network is made while it joins its groups, which is slow.
        """
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
            self._start_port_broker(self._network)
        self._start_exec_broker(child.pid)
        os.set_blocking(output, False)
        self._selector.register(output, selectors.EVENT_READ)
        self._output = output
        return child.pid

    def _command(self) -> tuple[list[str], list[int]]:
        """Return the command line, and the descriptors that it names.

        The workspace can read bwrap's command line. The options name host paths, so bwrap reads
        them from a descriptor. bwrap itself needs calls that the seccomp filter denies, so it
        installs the filter just before it runs the command.
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

    def _make_network(self, uplink: Uplink, handshake: socket.socket) -> None:
        self._network = Network(uplink)
        self._network.send_namespaces(handshake)
        with contextlib.suppress(ProcessLookupError):  # the child reports what became of the helper
            cgroups.join(self._groups, self._network.helper)

    def _start_port_broker(self, network: Network) -> None:
        """Start the port broker. If it cannot start, the workspace runs without ports."""
        namespaces = network.release()
        sockets = {self._directory.port_broker_socket: 0o600, self._shared_port_broker_socket: 0o660}
        try:
            self._port_broker = PortBroker(sockets, namespaces, self._selector)
        except OSError as error:
            namespaces.close()
            self._log_message(f"its ports cannot be reached: {error}")
            return
        if self._request.gateway_group is not None:
            with contextlib.suppress(OSError):  # the coordinator repeats it at each observation
                self._directory.share_sockets(self._request.gateway_group)

    def _start_exec_broker(self, child: int) -> None:
        """Start the exec broker. If it cannot start, the workspace runs without commands."""
        request = self._request
        settings = ExecSettings(
            child=child,
            sandbox_depth=request.sandbox_depth,
            uid=request.uid,
            env=request.env,
            umask=request.umask,
            groups=self._groups,
            limits=self._limits(),
            seccomp=base64.b64decode(request.seccomp),
        )
        try:
            self._exec_broker = ExecBroker(Path(request.executions), settings, self._selector)
        except OSError as error:
            self._log_message(f"no commands can be run in it: {error}")

    def _confine(self, handshake: socket.socket) -> None:
        """Confine the workspace's first process.

        Runs in that process, just before the program starts.
        """
        leave_session_keyring()
        cgroups.join(self._groups)
        self._set_limits()
        # When memory runs out, the kernel kills an IDE before CodeHub's own database.
        with contextlib.suppress(PermissionError):
            Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE_ADJUSTMENT)
        if self._request.uplink is not None:
            enter(handshake, self._request.uplink)
        if self._request.options:
            with contextlib.suppress(OSError):  # bwrap mounts its own instead
                tmpfs.mount(self._directory.scratch, self._request.memory_bytes)
        if self._request.seccomp and not self._is_sandboxed:
            seccomp.install(base64.b64decode(self._request.seccomp))

    def _set_limits(self) -> None:
        for limit, value in self._limits().items():
            resource.setrlimit(limit, (value, value))

    def _limits(self) -> dict[int, int]:
        """Return resource limits for what no control group caps.

        RLIMIT_DATA applies to each process, RLIMIT_NPROC to each user. RLIMIT_AS would stop Node,
        which reserves far more addresses than it uses.
        """
        request = self._request
        limits = {resource.RLIMIT_CORE: 0, resource.RLIMIT_NOFILE: open_files()}
        capped = {name for settings in self._groups.values() for name in settings}
        if not capped & {"memory.max", "memory.limit_in_bytes"}:
            limits[resource.RLIMIT_DATA] = request.memory_bytes
        if request.uid is not None and "pids.max" not in capped:
            limits[resource.RLIMIT_NPROC] = request.pids
        return limits

    def _install_signal_handlers(self) -> None:
        receiver, sender = socket.socketpair()
        receiver.setblocking(False)
        sender.setblocking(False)
        self._wakeups = (receiver, sender)
        signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._request_stop)
        for ignored in (signal.SIGHUP, signal.SIGINT):
            signal.signal(ignored, signal.SIG_IGN)
        self._selector.register(receiver, selectors.EVENT_READ)

    def _request_stop(self, *_: object) -> None:
        self._stopping = True

    def _wait_for_all_processes(self, child: int) -> None:
        while not self._reap(child):
            if self._code is not None:
                self._kill()
            elif self._stopping and self._kill_at is None:
                self._terminate()
            elif self._kill_at is not None and time.monotonic() >= self._kill_at:
                self._kill()
            for key, _ in self._selector.select(self._select_timeout()):
                if isinstance(key.data, PortBroker | ExecBroker):
                    key.data.accept()
                elif key.fileobj is self._wakeups[0]:
                    self._wakeups[0].recv(4096)
                else:
                    self._read_within_budget(key.fd)
            self._resume_reading()
        self._close_brokers()
        if self._output is not None:
            while self._read(self._output):
                pass

    def _select_timeout(self) -> float | None:
        if self._code is not None:
            return 0.02
        terminate_at = self._terminate_ide_at if self._kill_at is None else None
        times = [at for at in (terminate_at, self._kill_at, self._read_again_at) if at is not None]
        return max(0.02, min(times) - time.monotonic()) if times else None

    def _reap(self, child: int) -> bool:
        """Reap ended children and orphans of the tree; return True if none is left."""
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
                self._on_helper_exit(self._network)
            else:
                for broker in (self._port_broker, self._exec_broker):
                    if broker is not None:
                        broker.child_ended(pid)

    def _on_helper_exit(self, network: Network) -> None:
        self._network = None
        if self._code is None:
            output = network.helper_output()
            self._log_message(f"the network is gone until the workspace is started again: {output}")

    def _tree(self) -> dict[ProcessId, int]:
        helper = self._network.helper if self._network is not None else None
        return {
            process: depth for process, depth in descendants(os.getpid()).items() if process.pid != helper
        }

    def _terminate(self) -> None:
        """Send SIGTERM to every process of the workspace: first to its commands, then to the rest.

        The sandbox, and all that runs in it, ends with the IDE. If there is no process yet, there
        is no grace period.
        """
        if self._terminate_ide_at is None:
            self._stop_until = time.monotonic() + self._request.grace_seconds
            self._terminate_ide_at = time.monotonic() + self._terminate_commands()
        has_commands = self._exec_broker is not None and bool(self._exec_broker.monitors)
        if has_commands and time.monotonic() < self._terminate_ide_at:
            return
        signalled = [
            process
            for process, depth in self._tree().items()
            if depth > self._request.sandbox_depth and process.send(signal.SIGTERM)
        ]
        self._kill_at = self._stop_until if signalled else time.monotonic()

    def _terminate_commands(self) -> float:
        """Send SIGTERM to all commands; return how long to wait for them.

        Their monitors come first, so that they know why a command ends.
        """
        monitors, commands = self._monitors_and_commands()
        signalled = [process for process in (*monitors, *commands) if process.send(signal.SIGTERM)]
        return self._request.grace_seconds / 2 if signalled else 0

    def _kill(self) -> None:
        """Kill the tree. Monitors get some time to record the end of their commands."""
        self._close_brokers()
        cgroups.forbid_forks(self._groups)
        now = time.monotonic()
        if self._kill_monitors_at is None:
            self._kill_monitors_at = now + _RECORD_SECONDS
        monitors = set() if self._exec_broker is None else self._exec_broker.monitors
        tree = self._tree()
        for process in tree:
            is_recording = process.pid in monitors and now < self._kill_monitors_at
            process.send(signal.SIGTERM if is_recording else signal.SIGKILL)
        if not tree:
            self._kill_helper()

    def _monitors_and_commands(self) -> tuple[list[ProcessId], list[ProcessId]]:
        if self._exec_broker is None:
            return [], []
        monitors = [process for pid in self._exec_broker.monitors if (process := ProcessId.of(pid))]
        return monitors, [process for each in monitors for process in descendants(each.pid)]

    def _close_brokers(self) -> None:
        for broker in (self._port_broker, self._exec_broker):
            if broker is not None:
                broker.close()

    def _kill_helper(self) -> None:
        """Kill the network helper, the last child, once the tree is gone."""
        if self._network is not None:
            os.kill(self._network.helper, signal.SIGKILL)

    def _read_within_budget(self, output: int) -> None:
        """Read one piece, and pause once the budget is spent.

        More pieces at once would let an endless writer delay signals.
        """
        count = self._read(output)
        if count is not None:
            self._read_again_at = self._budget.spend(count, time.monotonic())
        if count is None or self._read_again_at is not None:
            self._selector.unregister(output)

    def _resume_reading(self) -> None:
        at = self._read_again_at
        if self._output is not None and at is not None and time.monotonic() >= at:
            self._read_again_at = None
            self._selector.register(self._output, selectors.EVENT_READ)

    def _read(self, output: int) -> int | None:
        """Move a piece of output to its file; return its size, or None at the end."""
        try:
            data = os.read(output, READ_BYTES)
        except BlockingIOError:
            return 0
        self._log.write(data)
        return len(data) or None


def _in_memory(content: bytes) -> int:
    """Return a descriptor of a file in memory with this content."""
    descriptor = os.memfd_create("content")
    os.write(descriptor, content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
