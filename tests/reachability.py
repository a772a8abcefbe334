"""Probes of what this machine and a workspace can connect to and read, and of what listens."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from tests.waiting import PATIENCE

Answers = dict[str, bool | str]
"""Name -> True, or the reason of the failure."""

_DROPPED = 2
"""Seconds to wait for a response that a firewall drops.

Too short a time could only hide a response.
"""

_PROBE = f"""
import json, os, socket, sys

def connect(name, dropped=()):
    host, _, port = name.rpartition(":")
    if name.startswith("/") or name.startswith("@"):
        client, address = socket.socket(socket.AF_UNIX), name.replace("@", chr(0), 1)
    else:
        client, address = socket.socket(), (host, int(port))
    client.settimeout({_DROPPED} if name in dropped else {PATIENCE})
    client.connect(address)

def read(name):
    if os.path.isdir(name):
        os.listdir(name)
    else:
        open(name, "rb").read(1)

def answer(attempt, name):
    try:
        attempt(name)
        return True
    except OSError as error:
        return str(error)
"""

_ENTER = """
import ctypes, os
system = ctypes.CDLL(None)
for namespace in [os.open("/proc/{pid}/ns/" + kind, os.O_RDONLY) for kind in ("net", "mnt")]:
    assert system.setns(namespace, 0) == 0
os.setgroups({groups})
os.setgid({uid})
os.setuid({uid})
"""

_ACCEPTS_CONNECTIONS = 1 << 16
_LISTENS = "0A"


def connect_from_host(*names: str) -> Answers:
    """Connect from this process: a control, without which a refusal proves nothing."""
    return _run(_script("connect"), names)


def read_from_host(*paths: str) -> Answers:
    return _run(_script("read"), paths)


def connect_from_namespaces(
    pid: int, uid: int, *names: str, dropped: Iterable[str] = (), groups: Iterable[int] = ()
) -> Answers:
    """Connect from the network and mount namespaces of another process, as a user.

    No program has to be installed there. `dropped` are the addresses whose packets a firewall
    drops.
    """
    return _run(_script(_connect(dropped), _ENTER.format(pid=pid, uid=uid, groups=[*groups])), names)


def read_from_namespaces(pid: int, uid: int, *paths: str, groups: Iterable[int] = ()) -> Answers:
    return _run(_script("read", _ENTER.format(pid=pid, uid=uid, groups=[*groups])), paths)


def connect_command(*names: str, dropped: Iterable[str] = ()) -> str:
    """Return a shell command that connects to addresses, for a workspace that has Python."""
    return _command(_script(_connect(dropped)), names)


def read_command(*paths: str) -> str:
    return _command(_script("read"), paths)


def _connect(dropped: Iterable[str]) -> str:
    return f"lambda name: connect(name, {[*dropped]!r})"


def _script(attempt: str, entry: str = "") -> str:
    loop = f"{{name: answer({attempt}, name) for name in json.load(sys.stdin)}}"
    return f"{_PROBE}{entry}print(json.dumps({loop}))"


def _run(script: str, names: Sequence[str]) -> Answers:
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, input=json.dumps(names), capture_output=True, text=True, check=True)
    answers: Answers = json.loads(done.stdout)
    return answers


def _command(script: str, names: Sequence[str]) -> str:
    return python_command(script.replace("json.load(sys.stdin)", json.dumps(names)))


def python_command(script: str) -> str:
    return f"/usr/bin/python3 -c {shlex.quote(script)}"


def successes(answers: Answers) -> set[str]:
    return {name for name, answer in answers.items() if answer is True}


def processes_on_host(pids: Iterable[int]) -> list[int]:
    """Return the processes that share the PID namespace of this process."""
    return [pid for pid in pids if _namespace_of(pid) == _namespace_of(os.getpid())]


def _namespace_of(pid: int) -> str | None:
    with suppress(OSError):  # it has ended
        return os.readlink(f"/proc/{pid}/ns/pid")
    return None


def listening_sockets(pids: Iterable[int]) -> set[str]:
    """Return the UNIX sockets (paths and `@abstract` names) on which these processes listen."""
    owned = _sockets_of(pids)
    lines = (line.split(maxsplit=7) for line in Path("/proc/net/unix").read_text().splitlines()[1:])
    named = (fields for fields in lines if len(fields) == 8)
    return {
        path
        for _, _, _, flags, _, _, inode, path in named
        if inode in owned and int(flags, 16) & _ACCEPTS_CONNECTIONS
    }


def listening_ports(pids: Iterable[int]) -> set[int]:
    """Return the TCP ports on which these processes listen, in our network, at any address."""
    owned = _sockets_of(pids)
    tables = [Path(f"/proc/net/{name}").read_text().splitlines()[1:] for name in ("tcp", "tcp6")]
    entries = [line.split() for table in tables for line in table]
    return {
        int(entry[1].rpartition(":")[2], 16)
        for entry in entries
        if entry[3] == _LISTENS and entry[9] in owned
    }


def _sockets_of(pids: Iterable[int]) -> set[str]:
    links = {link for pid in pids for link in _open_files(pid)}
    return {link.removeprefix("socket:[").removesuffix("]") for link in links if link.startswith("socket:")}


def _open_files(pid: int) -> Iterator[str]:
    with suppress(OSError):  # it has ended
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                yield os.readlink(descriptor)


def paths_below(directory: Path) -> list[str]:
    """Return the directory and all paths below it; skip those that disappear meanwhile."""
    return [
        os.path.join(parent, name).rstrip("/")
        for parent, _, files in os.walk(directory)
        for name in ("", *files)
    ]


def own_addresses() -> list[str]:
    """Return this machine's addresses, without loopback and without links of other tests."""
    listing = subprocess.run(["ip", "-j", "-4", "addr"], capture_output=True, check=True).stdout
    links = [link for link in json.loads(listing) if not link["ifname"].startswith(("lo", "chout", "chtest"))]
    return [info["local"] for link in links for info in link["addr_info"]]
