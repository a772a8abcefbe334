"""System calls that workspaces may not make, for every runtime (ADR 0027).

Standard library only.
"""

from __future__ import annotations

import os
import struct
from typing import Final, Literal

Machine = Literal["x86_64", "aarch64"]

NEWEST: Final = 466
"""The highest number in these tables (Linux 6.13). Newer calls fail with ENOSYS, as on an older
kernel."""

NAMESPACE_FLAGS: Final = 0x7E020000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET."""

DENIED_FAMILIES: Final = (38, 40)
"""AF_ALG, the kernel's cryptography; AF_VSOCK, which reaches the hypervisor past every network
rule."""

PERSONALITIES: Final = (0, 0x8, 0x20000, 0x20008, 0x40000, 0xFFFFFFFF)
"""Linux and Linux32, with and without UNAME26; ADDR_NO_RANDOMIZE, for debuggers; and the query."""

CONDITIONAL: Final[dict[str, tuple[int, int]]] = {
    "clone": (56, 220),
    "clone3": (435, 435),
    "personality": (135, 92),
    "socket": (41, 198),
}
"""Calls that are allowed depending on an argument. The arguments of clone3 are in memory, where a
filter cannot read them: it fails with ENOSYS, and libraries fall back to clone."""

DENIED: Final[dict[str, tuple[int | None, int | None]]] = {
    "_sysctl": (156, None),
    "acct": (163, 89),
    "add_key": (248, 217),
    "afs_syscall": (183, None),
    "bpf": (321, 280),
    "chroot": (161, 51),
    "clock_settime": (227, 112),
    "create_module": (174, None),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "get_kernel_syms": (177, None),
    "get_mempolicy": (239, 236),
    "getpmsg": (181, None),
    "init_module": (175, 105),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioperm": (173, None),
    "iopl": (172, None),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "lookup_dcookie": (212, 18),
    "lsm_get_self_attr": (459, 459),
    "lsm_list_modules": (461, 461),
    "lsm_set_self_attr": (460, 460),
    "mbind": (237, 235),
    "migrate_pages": (256, 238),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "move_pages": (279, 239),
    "nfsservctl": (180, 42),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "perf_event_open": (298, 241),
    "pidfd_getfd": (438, 438),
    "pivot_root": (155, 41),
    "process_madvise": (440, 440),
    "putpmsg": (182, None),
    "query_module": (178, None),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "security": (185, None),
    "set_mempolicy": (238, 237),
    "set_mempolicy_home_node": (450, 450),
    "setdomainname": (171, 162),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "settimeofday": (164, 170),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "sysfs": (139, None),
    "syslog": (103, 116),
    "tuxcall": (184, None),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "uselib": (134, None),
    "userfaultfd": (323, 282),
    "ustat": (136, None),
    "vhangup": (153, 58),
    "vserver": (236, None),
}
"""Calls that fail with EPERM, with their numbers on x86_64 and aarch64.

Docker's default profile denies each of them to a container without capabilities.
"""


def machine() -> Machine | None:
    """Return the architecture of this process, or None if there is no table for it."""
    if struct.calcsize("P") != 8:
        return None
    match os.uname().machine:
        case "x86_64":
            return "x86_64"
        case "aarch64":
            return "aarch64"
        case _:
            return None
