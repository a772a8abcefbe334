"""The network namespace of a workspace and its uplink (ADR 0011).

Standard library only (see `keeper`).

The uplink is slirp4netns: it takes the packets of the namespace and opens the connections itself,
as an unprivileged user. Routing rules inside the namespace decide what can be reached. The
workspace has no rights over the namespace, so it cannot change them. The only way in is the
keeper's `port_broker`.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from codehub.runtimes.open_files import open_files
from codehub.runtimes.process import libc
from codehub.runtimes.process.netlink import Rule, add_rules
from codehub.runtimes.process.spawn import receive, spawn

NETWORK_CIDR = "198.19.255.0/24"
"""Part of the range that is reserved for benchmarks (RFC 2544), which no real machine should
use."""
RESOLVER = "198.19.255.3"
"""The resolver of slirp4netns. It forwards to the host's name servers, whatever their addresses."""
HELPER_UID_OFFSET = 1 << 30
"""Under root the uid of the helper is the workspace's plus this: the helper has rights over the
namespace."""

MAX_CONNECTIONS = 4096
"""The open files of the helper, and so the connections of a workspace: each takes one."""

_INTERFACE = "tap0"
_MTU = 65520
_TUN = Path("/dev/net/tun")
_SET_DUMPABLE = 4
_MAX_HELPER_OUTPUT = 1 << 16
_NO_IPV6 = Path("/proc/sys/net/ipv6/conf/default/disable_ipv6")
_REVERSE_PATH_FILTER = Path("/proc/sys/net/ipv4/conf/all/rp_filter")
"""Multicast needs no route. Without this filter, any machine that receives it could answer."""


@dataclass(frozen=True)
class Uplink:
    """The program that connects a namespace, its user (None: ours), and the routing rules."""

    program: str
    uid: int | None
    rules: list[Rule]

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Uplink:
        return cls(raw["program"], raw["uid"], [Rule(**rule) for rule in raw["rules"]])


class Network:
    """A network namespace and its helper.

    `send_namespaces` sends it to the process that is to join, which calls `enter`.
    """

    def __init__(self, uplink: Uplink) -> None:
        self._uplink = uplink
        self._output = os.memfd_create("output")
        self._holder = _NamespaceHolder(uplink.uid)
        self._ready, ready = os.pipe()
        ended, self._lifeline = os.pipe()
        self.helper = self._start_helper(ready, ended)
        os.close(ready)
        os.close(ended)

    def _start_helper(self, ready: int, ended: int) -> int:
        argv = [
            self._uplink.program,
            *("--configure", f"--mtu={_MTU}", f"--cidr={NETWORK_CIDR}", "--disable-host-loopback"),
            *("--enable-sandbox", "--enable-seccomp", f"--ready-fd={ready}", f"--exit-fd={ended}"),
            *(str(self._holder.pid), _INTERFACE),
        ]
        kept = (ready, ended)
        helper = spawn(argv, {"PATH": os.defpath}, self._output, self._drop_helper_privileges, kept=kept)
        os.close(helper.report)  # an error is in its output
        return helper.pid

    def _drop_helper_privileges(self) -> None:
        if self._uplink.uid is not None:
            _mount_own_tun()
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (_MAX_HELPER_OUTPUT, _MAX_HELPER_OUTPUT))
        files = open_files(MAX_CONNECTIONS)
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
        _switch_user(self._uplink.uid)

    def send_namespaces(self, handshake: socket.socket) -> None:
        """Send the descriptors that `enter` receives on the other end of the socket."""
        namespaces = self._holder.namespaces
        socket.send_fds(handshake, [b"."], [namespaces.user, namespaces.net, self._ready, self._output])

    def helper_output(self) -> str:
        return _read_output(self._output)

    def release(self) -> Namespaces:
        """Return the namespaces, and end the process that held them.

        Processes inside and open descriptors keep the namespaces alive. The lifeline ends the
        helper when this process ends.
        """
        self._holder.release()
        os.close(self._ready)
        return self._holder.namespaces


@dataclass(frozen=True)
class Namespaces:
    """A user namespace and the network namespace that it owns, as open descriptors.

    Without root they belong to our own user, who must join the user namespace to join the network.
    """

    user: int
    net: int
    with_root: bool

    def enter(self) -> None:
        if not self.with_root:
            libc.call("setns", self.user, libc.NEW_USER)
        libc.call("setns", self.net, libc.NEW_NETWORK)

    def close(self) -> None:
        for descriptor in (self.user, self.net):
            os.close(descriptor)


def enter(handshake: socket.socket, uplink: Uplink) -> None:
    """Join the namespaces that `send_namespaces` sends, and set the routing rules.

    Returns once the uplink works.
    """
    _, received = receive(handshake, 1, 4)
    if len(received) != 4:
        raise OSError("its network could not be made")
    user, net, ready, output = received
    Namespaces(user, net, uplink.uid is not None).enter()
    if not os.read(ready, 1):
        raise OSError(f"its network has no uplink: {_read_output(output) or 'slirp4netns ended'}")
    add_rules(uplink.rules)


def _read_output(file: int) -> str:
    return " ".join(os.pread(file, _MAX_HELPER_OUTPUT, 0).decode(errors="replace").split())


class _NamespaceHolder:
    """Child process that creates the namespaces and keeps them alive until others open them."""

    def __init__(self, uid: int | None) -> None:
        self._lifeline, theirs = socket.socketpair()
        with theirs:
            self.pid = os.fork()
            if self.pid == 0:
                self._lifeline.close()
                _hold(uid, theirs)
        message, opened = receive(self._lifeline, 4096, 2)
        if len(opened) != 2:
            raise OSError(f"no network namespace can be made: {message.decode() or 'the attempt ended'}")
        user, net = opened
        self.namespaces = Namespaces(user, net, uid is not None)

    def release(self) -> None:
        """End the child. It is reaped like every other child."""
        self._lifeline.close()


def _hold(uid: int | None, lifeline: socket.socket) -> NoReturn:
    try:
        _unshare(uid)
        opened = [os.open(f"/proc/self/ns/{kind}", os.O_RDONLY) for kind in ("user", "net")]
        socket.send_fds(lifeline, [b"made"], opened)
        lifeline.recv(1)
    except OSError as error:
        lifeline.send(str(error).encode())
    finally:
        os._exit(0)


def _unshare(uid: int | None) -> None:
    _switch_user(uid)
    libc.call("prctl", _SET_DUMPABLE, 1, 0, 0, 0)
    outside_uid, outside_gid = os.geteuid(), os.getegid()
    libc.call("unshare", libc.NEW_USER | libc.NEW_NETWORK)
    # The sandbox of slirp4netns needs to be root there.
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"0 {outside_uid} 1"),
        ("gid_map", f"0 {outside_gid} 1"),
    ):
        Path("/proc/self", name).write_text(text)
    if _NO_IPV6.exists():
        _NO_IPV6.write_text("1")  # for new interfaces; `::1` stays
    _REVERSE_PATH_FILTER.write_text("1")


def _mount_own_tun() -> None:
    """Mount a TUN device that everybody may open, if only root may open the machine's."""
    if not _TUN.exists() or _TUN.stat().st_mode & 0o006 == 0o006:
        return
    device = _TUN.stat().st_rdev
    libc.enter_new_mount_namespace()
    libc.mount_tmpfs(str(_TUN.parent), "mode=755", libc.NO_SUID | libc.NO_EXEC)
    os.mknod(_TUN, stat.S_IFCHR, device)
    _TUN.chmod(0o666)


def _switch_user(uid: int | None) -> None:
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
