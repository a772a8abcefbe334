"""System calls from inside a workspace, made by Perl, which needs little but the C library."""

from __future__ import annotations

import errno
import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from codehub.runtimes.seccomp import CONDITIONAL, DENIED, machine

_CLONE_NEWUSER, _SIGCHLD, _AF_ALG, _AF_VSOCK, _SOCK_STREAM = 0x10000000, 17, 38, 40, 1
_PTRACE_TRACEME = 0
_PTRACE = {"x86_64": 101, "aarch64": 117}
_MAKE_CALLS = r"""
$| = 1;
for (@ARGV) {
  my ($name, $number, @arguments) = split /,/;
  $! = 0;
  my $answer = syscall(0 + $number, map { 0 + $_ } @arguments);
  exit if $answer == 0 && $name =~ /^clone/;
  printf "%s %d\n", $name, $answer < 0 ? $! + 0 : 0;
}
"""

Calls = dict[str, tuple[int, ...]]
"""Name -> number and arguments."""


def denied_calls() -> Calls:
    """Return all calls that must fail with EPERM, with arguments that are harmless otherwise."""
    calls = {name: (number, -1, -1, -1, -1) for name in DENIED if (number := _number(name)) is not None}
    socket = _number("socket") or 0
    return calls | {
        "unshare": (calls["unshare"][0], _CLONE_NEWUSER),
        "userfaultfd": (calls["userfaultfd"][0], 0),
        "clone": (_number("clone") or 0, _CLONE_NEWUSER | _SIGCHLD, 0, 0, 0, 0),
        "socket(AF_ALG)": (socket, _AF_ALG, _SOCK_STREAM, 0),
        "socket(AF_VSOCK)": (socket, _AF_VSOCK, _SOCK_STREAM, 0),
    }


def allowed_calls() -> Calls:
    """Return the first calls of a debugger."""
    kind = machine()
    assert kind is not None
    return {
        "ptrace": (_PTRACE[kind], _PTRACE_TRACEME, 0, 0, 0),
        "personality": (_number("personality") or 0, 0x40000),
    }


def clone3() -> Calls:
    return {"clone3": (_number("clone3") or 0, 0, 0)}


def _number(name: str) -> int | None:
    return (DENIED | CONDITIONAL)[name][0 if machine() == "x86_64" else 1]


def command(calls: Calls, perl: str = "/usr/bin/perl") -> str:
    """Return a shell command that makes the calls and prints their results."""
    arguments = [",".join(map(str, (name, *call))) for name, call in calls.items()]
    return f"{perl} -e {shlex.quote(_MAKE_CALLS)} {shlex.join(arguments)}"


def answers(printed: str) -> dict[str, str]:
    """Return the error's name for each call; empty if it was made."""
    lines = [line.rsplit(maxsplit=1) for line in printed.splitlines()]
    return {name: errno.errorcode.get(int(number), "") for name, number in lines}


def other_results(results: Mapping[str, str], error: str) -> dict[str, str]:
    """Return the calls with any other result than this error."""
    return {name: result for name, result in results.items() if result != error}


def copy_perl(directory: Path) -> str:
    """Copy Perl and its libraries into a directory; return the command to call it there."""
    perl = shutil.which("perl")
    assert perl is not None
    listed = subprocess.run(["ldd", perl], capture_output=True, text=True, check=True).stdout
    libraries = [Path(word) for word in listed.split() if word.startswith("/")]
    for file in (Path(perl), *libraries):
        shutil.copy(file, directory / file.name)
        os.chmod(directory / file.name, 0o755)
    (loader,) = [library.name for library in libraries if library.name.startswith("ld-linux")]
    return f"./{loader} --library-path . ./perl"
