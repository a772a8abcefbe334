"""Denied system calls: the BPF program, run by an interpreter, and the engine's profile."""

import errno
import json
import re
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from codehub.runtimes.docker.seccomp import ALLOWED, profile
from codehub.runtimes.process.seccomp import ALLOW, ENOSYS, EPERM, KILL_PROCESS, program
from codehub.runtimes.seccomp import CONDITIONAL, DENIED, NEWEST, Machine

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
I386, ARM, X32_BIT = 0x40000003, 0x40000028, 0x40000000
HEADERS: dict[Machine, Path] = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}
OTHER_NAMES = {"arch_specific_syscall", "syscalls", "fstatat", "epoll_ctl_old", "epoll_wait_old"}
"""Not calls of a 64-bit kernel, or under another name."""
MACHINES: list[Machine] = ["x86_64", "aarch64"]
EVERY_MACHINE = pytest.mark.parametrize("machine", MACHINES)

CLONE_NEWUSER, CLONE_VM, CLONE_THREAD, SIGCHLD = 0x10000000, 0x100, 0x10000, 17
AF_UNIX, AF_INET, AF_ALG, AF_IB, AF_VSOCK, AF_XDP = 1, 2, 38, 27, 40, 44


def verdict(code: bytes, number: int, *arguments: int, architecture: int) -> int:
    """Run a classic BPF program as the kernel does."""
    data = struct.pack("=IIQ6Q", number, architecture, 0, *arguments, *[0] * (6 - len(arguments)))
    instructions = list(struct.iter_unpack("=HBBI", code))
    accumulator = position = 0
    while True:
        operation, then, otherwise, value = instructions[position]
        position += 1
        match operation:
            case 0x20:
                (accumulator,) = struct.unpack_from("=I", data, value)
            case 0x15:
                position += then if accumulator == value else otherwise
            case 0x25:
                position += then if accumulator > value else otherwise
            case 0x45:
                position += then if accumulator & value else otherwise
            case 0x06:
                return int(value)
            case _:
                raise AssertionError(f"the kernel has no such instruction: {operation:#x}")


def answer(machine: Machine, number: int, *arguments: int) -> int:
    return verdict(program(machine), number, *arguments, architecture=ARCHITECTURES[machine])


def number_of(name: str, machine: Machine) -> int:
    number = (CONDITIONAL | DENIED)[name][MACHINES.index(machine)]
    assert number is not None
    return number


def calls_of(machine: Machine) -> dict[str, int]:
    """Return the calls in the kernel headers, without variants for 32-bit architectures."""
    if not HEADERS[machine].exists():
        pytest.skip("needs the kernel's headers: apt-get install linux-libc-dev")
    found = re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", HEADERS[machine].read_text())
    calls = {name: int(number) for name, number in found}
    return {name: number for name, number in calls.items() if not re.fullmatch(r".*time(64|32)(_64)?", name)}


@EVERY_MACHINE
def test_every_denied_call_answers_eperm(machine: Machine) -> None:
    numbers = [numbers[MACHINES.index(machine)] for numbers in DENIED.values()]
    assert {answer(machine, number) for number in numbers if number is not None} == {EPERM}


@EVERY_MACHINE
def test_every_other_call_is_allowed(machine: Machine) -> None:
    column = MACHINES.index(machine)
    special = {numbers[column] for numbers in (CONDITIONAL | DENIED).values()}
    assert {answer(machine, number) for number in range(NEWEST + 1) if number not in special} == {ALLOW}


@EVERY_MACHINE
def test_calls_that_are_newer_than_the_list_do_not_exist(machine: Machine) -> None:
    assert {answer(machine, number) for number in (NEWEST + 1, 500, 1 << 31)} == {ENOSYS}


def test_calls_of_x32_do_not_exist() -> None:
    assert {answer("x86_64", X32_BIT | number) for number in range(600)} == {ENOSYS}


@EVERY_MACHINE
@pytest.mark.parametrize("architecture", [I386, ARM, 0])
def test_a_call_of_another_architecture_ends_the_process(machine: Machine, architecture: int) -> None:
    """Its numbers mean other calls: 272 is unshare on x86_64, and 310 on i386."""
    assert verdict(program(machine), 0, architecture=architecture) == KILL_PROCESS


@EVERY_MACHINE
def test_no_flag_of_clone_makes_a_namespace(machine: Machine) -> None:
    clone = number_of("clone", machine)
    assert answer(machine, clone, SIGCHLD) == ALLOW
    assert answer(machine, clone, CLONE_VM | CLONE_THREAD) == ALLOW
    for bit in (17, 25, 26, 27, 28, 29, 30):
        assert answer(machine, clone, 1 << bit | SIGCHLD) == EPERM
    assert answer(machine, clone, 0xFFFFFFFF_00000000 | CLONE_NEWUSER) == EPERM


@EVERY_MACHINE
def test_clone3_does_not_exist_so_that_libraries_use_clone(machine: Machine) -> None:
    assert answer(machine, number_of("clone3", machine)) == ENOSYS


@EVERY_MACHINE
def test_sockets_reach_neither_the_hypervisor_nor_the_kernels_cryptography(machine: Machine) -> None:
    socket = number_of("socket", machine)
    assert {answer(machine, socket, family) for family in (AF_UNIX, AF_INET, AF_IB, 39, AF_XDP)} == {ALLOW}
    assert {answer(machine, socket, family) for family in (AF_ALG, AF_VSOCK, 1 << 32 | AF_VSOCK)} == {EPERM}


@EVERY_MACHINE
def test_personalities_are_those_of_debuggers_and_of_linux(machine: Machine) -> None:
    personality = number_of("personality", machine)
    assert {answer(machine, personality, value) for value in (0, 0x40000, 0xFFFFFFFF)} == {ALLOW}
    assert answer(machine, personality, 0x400000) == EPERM, "READ_IMPLIES_EXEC"


@EVERY_MACHINE
def test_the_numbers_are_the_kernels(machine: Machine) -> None:
    column, calls = MACHINES.index(machine), calls_of(machine)
    ours = {name: numbers[column] for name, numbers in (CONDITIONAL | DENIED).items()}
    assert {name: number for name, number in ours.items() if calls.get(name, number) != number} == {}
    assert {name for name, number in ours.items() if number is not None and number <= 450} <= set(calls)


@EVERY_MACHINE
def test_every_call_of_the_kernel_is_either_allowed_or_denied(machine: Machine) -> None:
    """A call on no list would fail on Docker and be allowed on the process runtime."""
    known = ALLOWED | set(DENIED) | set(CONDITIONAL) | OTHER_NAMES
    newer = {name for name, number in calls_of(machine).items() if number > NEWEST}
    assert set(calls_of(machine)) - known - newer == set()
    assert not ALLOWED & (set(DENIED) | set(CONDITIONAL))


def rules(name: str) -> Iterator[dict[str, object]]:
    return (rule for rule in json.loads(profile())["syscalls"] if name in rule["names"])


def test_the_profile_denies_what_it_does_not_name() -> None:
    assert json.loads(profile())["defaultAction"] == "SCMP_ACT_ERRNO"
    assert json.loads(profile())["defaultErrnoRet"] == errno.EPERM
    assert [name for name in DENIED if list(rules(name))] == []


def test_the_profile_allows_conditional_calls_by_their_argument_alone() -> None:
    assert [rule["errnoRet"] for rule in rules("clone3")] == [errno.ENOSYS]
    for name in ("clone", "personality", "socket"):
        assert all(rule["args"] for rule in rules(name))
    families = [rule["args"][0] for rule in rules("socket")]  # type: ignore[index]
    allowed = [(family["op"].removeprefix("SCMP_CMP_"), family["value"]) for family in families]
    assert allowed == [("LT", AF_ALG), ("EQ", 39), ("GT", AF_VSOCK)]
