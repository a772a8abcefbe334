#!/usr/bin/env python3
"""Run Chromium without monitoring the machine's network interfaces: `chromium.py ARGUMENT...`.

Chromium aborts its requests, even to localhost, when an interface appears or disappears
(ERR_NETWORK_CHANGED). The tests of the Docker runtime, which run in parallel, create interfaces all
the time. Chromium monitors them with a netlink socket. Without one, it assumes that the network is
fixed.
"""

import ctypes
import errno
import os
import platform
import shutil
import socket
import struct
import sys

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser")
SOCKET_CALL = {"x86_64": 41, "aarch64": 198}
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
NUMBER_AT, FIRST_ARGUMENT_AT = 0, 16
ALLOW, FAIL_WITH = 0x7FFF0000, 0x00050000


def refuse_netlink(socket_call: int) -> None:
    """Make `socket(AF_NETLINK, ...)` fail in this process and its children (seccomp)."""
    instructions = [
        (LOAD, 0, 0, NUMBER_AT),
        (JUMP_IF_EQUAL, 0, 3, socket_call),
        (LOAD, 0, 0, FIRST_ARGUMENT_AT),
        (JUMP_IF_EQUAL, 0, 1, socket.AF_NETLINK),
        (RETURN, 0, 0, FAIL_WITH | errno.EAFNOSUPPORT),
        (RETURN, 0, 0, ALLOW),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in instructions))
    program = ctypes.create_string_buffer(struct.pack("HP", len(instructions), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in ((PR_SET_NO_NEW_PRIVS, 1, 0), (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program)):
        if libc.prctl(*arguments, 0, 0) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))


if __name__ == "__main__":
    assert PROGRAM is not None, "Chromium is missing: apt-get install chromium"
    refuse_netlink(SOCKET_CALL[platform.machine()])
    os.execv(PROGRAM, [PROGRAM, *sys.argv[1:]])
