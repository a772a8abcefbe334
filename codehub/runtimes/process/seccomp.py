"""The seccomp filter of a process workspace, a classic BPF program (ADR 0027).

Standard library only (see `keeper`).
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from dataclasses import dataclass

from codehub.runtimes.seccomp import (
    CONDITIONAL,
    DENIED,
    DENIED_FAMILIES,
    NAMESPACE_FLAGS,
    NEWEST,
    PERSONALITIES,
    Machine,
)

ALLOW, KILL_PROCESS = 0x7FFF0000, 0x80000000
_ERRNO = 0x00050000
EPERM, ENOSYS = _ERRNO | errno.EPERM, _ERRNO | errno.ENOSYS

_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
"""Offsets in `struct seccomp_data`. Of the argument this is the lower half, all that the kernel
reads."""
_AUDIT_ARCHITECTURE: dict[Machine, int] = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_LOAD, _RETURN = 0x20, 0x06
_IF_EQUAL, _IF_GREATER, _IF_ANY_BIT = 0x15, 0x25, 0x45
_LONGEST_JUMP = 255
_INSTRUCTION = struct.Struct("=HBBI")

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 38, 22, 2


@dataclass(frozen=True)
class _Jump:
    """Conditional jump of a BPF program: without a label, the program continues."""

    test: int
    value: int
    then: str | None = None
    otherwise: str | None = None


_Line = _Jump | tuple[int, int] | str
"""A jump, a load or return with its operand, or a label."""


def program(machine: Machine) -> bytes:
    """Return the filter.

    Calls of another architecture (32 bit) kill the process; x32 calls exceed `NEWEST`.
    """
    column = 0 if machine == "x86_64" else 1
    lines: list[_Line] = [
        (_LOAD, _ARCHITECTURE),
        _Jump(_IF_EQUAL, _AUDIT_ARCHITECTURE[machine], otherwise="foreign"),
        (_LOAD, _NUMBER),
        _Jump(_IF_GREATER, NEWEST, "unknown"),
        *(_Jump(_IF_EQUAL, numbers[column], name) for name, numbers in CONDITIONAL.items()),
    ]
    denied = [number for numbers in DENIED.values() if (number := numbers[column]) is not None]
    lines += [_Jump(_IF_EQUAL, number, "deny") for number in sorted(denied)]
    lines += [(_RETURN, ALLOW)]
    lines += ["clone", (_LOAD, _FIRST_ARGUMENT), _Jump(_IF_ANY_BIT, NAMESPACE_FLAGS, "deny", "allow")]
    lines += ["socket", (_LOAD, _FIRST_ARGUMENT)]
    lines += [_Jump(_IF_EQUAL, family, "deny") for family in DENIED_FAMILIES]
    lines += [(_RETURN, ALLOW)]
    lines += ["personality", (_LOAD, _FIRST_ARGUMENT)]
    lines += [_Jump(_IF_EQUAL, value, "allow") for value in PERSONALITIES]
    lines += ["deny", (_RETURN, EPERM)]
    lines += ["clone3", "unknown", (_RETURN, ENOSYS)]
    lines += ["foreign", (_RETURN, KILL_PROCESS)]
    lines += ["allow", (_RETURN, ALLOW)]
    return _assemble(lines)


def _assemble(lines: list[_Line]) -> bytes:
    labels: dict[str, int] = {}
    instructions: list[_Jump | tuple[int, int]] = []
    for line in lines:
        if isinstance(line, str):
            labels[line] = len(instructions)
        else:
            instructions.append(line)
    return b"".join(_encode(line, position + 1, labels) for position, line in enumerate(instructions))


def _encode(line: _Jump | tuple[int, int], following: int, labels: dict[str, int]) -> bytes:
    if not isinstance(line, _Jump):
        code, operand = line
        return _INSTRUCTION.pack(code, 0, 0, operand)
    distances = [0 if label is None else labels[label] - following for label in (line.then, line.otherwise)]
    if not all(0 <= distance <= _LONGEST_JUMP for distance in distances):
        raise ValueError(f"the filter has a jump that is too long, or leads back: {line}")
    return _INSTRUCTION.pack(line.test, *distances, line.value)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def install(code: bytes) -> None:
    """Install a filter for this process and all that it starts. It cannot be removed."""
    libc = ctypes.CDLL(None, use_errno=True)
    filter_program = _Program(len(code) // _INSTRUCTION.size, code)
    for arguments in (
        (_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
        (_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(filter_program), 0, 0),
    ):
        if libc.prctl(*arguments) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"the seccomp filter: {os.strerror(number)}")
