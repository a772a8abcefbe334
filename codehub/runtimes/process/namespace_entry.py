"""Entry of a process into a running workspace (ADR 0033). Standard library only (see `keeper`).

The process joins the namespaces of the workspace, drops all rights, and runs a command as the
workspace's user. Until then it executes nothing: no program, and no module of Python, since the
files that it sees after it has joined are the workspace's.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from codehub.host.processes import ProcessId, descendants
from codehub.runtimes.process import libc

_KINDS = ("net", "cgroup", "ipc", "uts", "pid", "mnt")
"""The network comes first: without root its user namespace is the outermost one. The mounts come
last, because they hide /proc."""
_GET_OWNER = 0xB701
"""The ioctl for the user namespace that owns a namespace (NS_GET_USERNS)."""
_SYSTEM_CALLS = {"x86_64": 56, "aarch64": 220}
_CLONE_PARENT = 0x00008000
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_CAPBSET_READ, _PR_CAPBSET_DROP = 1, 4, 23, 24
_PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 38, 47, 4
_CAPABILITY_VERSION_3 = 0x20080522


@dataclass(frozen=True)
class NamespaceSet:
    """Open namespaces of a workspace, in the order in which to join them. Ours are left out."""

    descriptors: list[int]

    @classmethod
    def of_workspace(cls, child: int, sandbox_depth: int) -> NamespaceSet:
        """Open the namespaces of a workspace whose first process, below the keeper, is `child`."""
        process = _find_process_inside(child, sandbox_depth)
        kinds = [kind for kind in _KINDS if not _is_shared(process.pid, kind)]
        opened = [_open_namespace(process.pid, kind) for kind in kinds]
        if not _is_shared(process.pid, "user"):
            opened = [*_with_owners(opened), _open_namespace(process.pid, "user")]
        if not process.is_alive():
            raise OSError("the workspace has ended")
        return cls(opened)

    def join(self) -> None:
        """Join them. The process namespace takes effect for the next child."""
        for descriptor in self.descriptors:
            libc.call("setns", descriptor, 0)


def _find_process_inside(child: int, sandbox_depth: int) -> ProcessId:
    """Return the first process inside, which exists as long as any other.

    Until bwrap has started the IDE, the sandbox is not complete and still shows the host's files.
    """
    if sandbox_depth == 0:
        found = ProcessId.of(child)
    else:
        levels = descendants(child)
        inside = [process for process, level in levels.items() if level == sandbox_depth - 1]
        found = inside[0] if inside and sandbox_depth in levels.values() else None
    if found is None:
        raise OSError("the workspace is not ready yet, or it has ended")
    return found


def _with_owners(namespaces: list[int]) -> list[int]:
    """Insert the user namespace that gives the rights to join each namespace.

    Two namespaces in a row often have the same owner, which can be joined only once.
    """
    result: list[int] = []
    last: os.stat_result | None = None
    for namespace in namespaces:
        owner = fcntl.ioctl(namespace, _GET_OWNER)
        os.set_inheritable(owner, False)
        if last is None or not os.path.samestat(last, os.fstat(owner)):
            result.append(owner)
            last = os.fstat(owner)
        result.append(namespace)
    return result


def _open_namespace(pid: int, kind: str) -> int:
    return os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)


def _is_shared(pid: int, kind: str) -> bool:
    """Return whether the process is in our own namespace of this kind."""
    try:
        return Path(f"/proc/{pid}/ns/{kind}").samefile(f"/proc/self/ns/{kind}")
    except FileNotFoundError:
        return True  # a kind that this kernel does not have


def forbid_imports() -> None:
    """Load no module from now on: its file could be the workspace's."""
    sys.path.clear()
    sys.meta_path.clear()
    sys.path_importer_cache.clear()


def forbid_tracing() -> None:
    """Close this process, its memory and its descriptors to others of the same user."""
    libc.call("prctl", _PR_SET_DUMPABLE, 0, 0, 0, 0)


def fork_sibling() -> int:
    """Fork a child of this process's parent, which so can wait for it. Return its PID, or 0 in it.

    The child is in the process namespace that this process has joined last.
    """
    number = _SYSTEM_CALLS.get(os.uname().machine)
    if number is None:
        raise OSError(f"the number of the clone system call on {os.uname().machine} is not known")
    system = ctypes.CDLL(None, use_errno=True)
    pid = int(system.syscall(number, _CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0))
    if pid < 0:
        raise OSError(ctypes.get_errno(), f"clone: {os.strerror(ctypes.get_errno())}")
    return pid


def drop_rights(uid: int | None) -> None:
    """Become the workspace's user (None: stay the one that CodeHub runs as), with no rights at all."""
    libc.call("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    system = ctypes.CDLL(None, use_errno=True)
    capability = 0
    while system.prctl(_PR_CAPBSET_READ, capability, 0, 0, 0) >= 0:
        system.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)  # fails without root, who has none to drop
        capability += 1
    libc.call("prctl", _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    if system.capset(header, (ctypes.c_uint32 * 6)()) != 0:
        raise OSError(ctypes.get_errno(), "the capabilities cannot be dropped")
    forbid_tracing()
    # Cleared by the change of the user, so it is set after that.
    libc.call("prctl", _PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
