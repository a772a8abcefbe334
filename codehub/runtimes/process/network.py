"""A network of the workspace's own, with a way out. Standard library only (see `keeper`).

The way out is slirp4netns: it takes the packets of a network namespace and opens the connections itself, as a
user of its own without any rights. What may be reached is decided inside the namespace, by routing rules that
the workspace, which has no rights over its namespace, cannot change. Nothing comes in, but by the keeper's
`door`.
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
"""Reserved for benchmarks, so that nobody's machines have these addresses."""
RESOLVER = "198.19.255.3"
"""slirp4netns's own: it asks the host's name servers, wherever they are."""
HELPER_UID_OFFSET = 1 << 30
"""Under root the helper is this far from its workspace's user: it has rights over the namespace."""

MAX_CONNECTIONS = 4096
"""As many files may the helper have open, and each connection of the workspace takes one."""

_INTERFACE = "tap0"
_MTU = 65520
_TUN = Path("/dev/net/tun")
_SET_DUMPABLE = 4
_WORDS_BYTES = 1 << 16
_NO_IPV6 = Path("/proc/sys/net/ipv6/conf/default/disable_ipv6")
_ONLY_FROM_WHERE_WE_MAY_SEND = Path("/proc/sys/net/ipv4/conf/all/rp_filter")
"""Multicast needs no route: without this, whoever hears it could answer from any address."""


@dataclass(frozen=True)
class Uplink:
    """What a network is made of: the helper's program, its user (None: ours), and the rules."""

    program: str
    uid: int | None
    rules: list[Rule]

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Uplink:
        return cls(raw["program"], raw["uid"], [Rule(**rule) for rule in raw["rules"]])


class Network:
    """A namespace and its helper. Whoever is to live in it is told by `admit`, and comes in by `enter`."""

    def __init__(self, uplink: Uplink) -> None:
        self._uplink = uplink
        self._words = os.memfd_create("words")
        self._holder = _Holder(uplink.uid)
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
        helper = spawn(argv, {"PATH": os.defpath}, self._words, self._lower_helper, kept=kept)
        os.close(helper.report)  # what it has to say is among its words
        return helper.pid

    def _lower_helper(self) -> None:
        if self._uplink.uid is not None:
            _share_tun()
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (_WORDS_BYTES, _WORDS_BYTES))
        files = open_files(MAX_CONNECTIONS)
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
        _become(self._uplink.uid)

    def admit(self, door: socket.socket) -> None:
        """Let in whoever waits at the other end of the door."""
        namespaces = self._holder.namespaces
        socket.send_fds(door, [b"."], [namespaces.user, namespaces.net, self._ready, self._words])

    def helper_words(self) -> str:
        return _read_words(self._words)

    def let_go(self) -> Namespaces:
        """Whoever is inside, or can go there, keeps the namespaces; the lifeline ends the helper with us."""
        self._holder.let_go()
        os.close(self._ready)
        return self._holder.namespaces


@dataclass(frozen=True)
class Namespaces:
    """A user namespace and the network namespace that it owns, as open descriptors.

    Without root they belong to our own user, who has rights over the network only from within its owner.
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


def enter(door: socket.socket, uplink: Uplink) -> None:
    """For the workspace's first process, which goes on once there is a way out and its rules hold."""
    _, handed_over = receive(door, 1, 4)
    if len(handed_over) != 4:
        raise OSError("its network could not be made")
    user, net, ready, words = handed_over
    Namespaces(user, net, uplink.uid is not None).enter()
    if not os.read(ready, 1):
        raise OSError(f"there is no way out: {_read_words(words) or 'slirp4netns ended'}")
    add_rules(uplink.rules)


def _read_words(file: int) -> str:
    return " ".join(os.pread(file, _WORDS_BYTES, 0).decode(errors="replace").split())


class _Holder:
    """A process that makes namespaces, and stays in them until others have them open."""

    def __init__(self, uid: int | None) -> None:
        self._lifeline, theirs = socket.socketpair()
        with theirs:
            self.pid = os.fork()
            if self.pid == 0:
                self._lifeline.close()
                _hold(uid, theirs)
        words, opened = receive(self._lifeline, 4096, 2)
        if len(opened) != 2:
            raise OSError(f"no network namespace can be made: {words.decode() or 'the attempt ended'}")
        user, net = opened
        self.namespaces = Namespaces(user, net, uid is not None)

    def let_go(self) -> None:
        """It ends by itself then, and is waited for like every other child."""
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
    _become(uid)
    libc.call("prctl", _SET_DUMPABLE, 1, 0, 0, 0)
    outside_uid, outside_gid = os.geteuid(), os.getegid()
    libc.call("unshare", libc.NEW_USER | libc.NEW_NETWORK)
    # slirp4netns' own sandbox wants to be root there.
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"0 {outside_uid} 1"),
        ("gid_map", f"0 {outside_gid} 1"),
    ):
        Path("/proc/self", name).write_text(text)
    if _NO_IPV6.exists():
        _NO_IPV6.write_text("1")  # for interfaces to come: `::1` stays
    _ONLY_FROM_WHERE_WE_MAY_SEND.write_text("1")


def _share_tun() -> None:
    """Where only root may open the device that the way out needs, the helper sees one of its own."""
    if not _TUN.exists() or _TUN.stat().st_mode & 0o006 == 0o006:
        return
    device = _TUN.stat().st_rdev
    libc.enter_new_mount_namespace()
    libc.mount_tmpfs(str(_TUN.parent), "mode=755", libc.NO_SUID | libc.NO_EXEC)
    os.mknod(_TUN, stat.S_IFCHR, device)
    _TUN.chmod(0o666)


def _become(uid: int | None) -> None:
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
