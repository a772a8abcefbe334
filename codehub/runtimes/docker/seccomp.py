"""The seccomp profile of a container, in the engine's format (ADR 0027). Pure functions."""

from __future__ import annotations

import errno
import json
from functools import cache
from typing import Any

from codehub.runtimes.seccomp import DENIED_FAMILIES, NAMESPACE_FLAGS, PERSONALITIES

_NAMES = """
    accept accept4 access adjtimex alarm arch_prctl bind brk cachestat capget capset chdir chmod chown
clock_adjtime clock_getres clock_gettime clock_nanosleep close close_range connect copy_file_range creat
dup dup2 dup3 epoll_create epoll_create1 epoll_ctl epoll_pwait epoll_pwait2 epoll_wait eventfd eventfd2
execve execveat exit exit_group faccessat faccessat2 fadvise64 fallocate fanotify_mark fchdir fchmod
fchmodat fchmodat2 fchown fchownat fcntl fdatasync fgetxattr flistxattr flock fork fremovexattr     fsetxattr
fstat fstatfs fsync ftruncate futex futex_requeue futex_wait futex_waitv futex_wake futimesat
get_robust_list get_thread_area getcpu getcwd getdents getdents64 getegid geteuid getgid getgroups
getitimer getpeername getpgid getpgrp getpid getppid getpriority getrandom getresgid getresuid getrlimit
getrusage getsid getsockname getsockopt gettid gettimeofday getuid getxattr getxattrat inotify_add_watch
inotify_init inotify_init1 inotify_rm_watch io_cancel io_destroy io_getevents io_pgetevents io_setup
io_submit ioctl ioprio_get ioprio_set kill landlock_add_rule landlock_create_ruleset
landlock_restrict_self lchown lgetxattr link linkat listen listmount listxattr listxattrat llistxattr
lremovexattr lseek lsetxattr lstat madvise map_shadow_stack membarrier memfd_create memfd_secret mincore
mkdir mkdirat mknod mknodat mlock mlock2 mlockall mmap modify_ldt mprotect mq_getsetattr mq_notify
mq_open mq_timedreceive mq_timedsend mq_unlink mremap mseal msgctl msgget msgrcv msgsnd msync munlock
munlockall munmap name_to_handle_at nanosleep newfstatat open openat openat2 pause pidfd_open
pidfd_send_signal pipe pipe2 pkey_alloc pkey_free pkey_mprotect poll ppoll prctl pread64 preadv preadv2
prlimit64 process_mrelease process_vm_readv process_vm_writev pselect6 ptrace pwrite64 pwritev pwritev2
read readahead readlink readlinkat readv recvfrom recvmmsg recvmsg remap_file_pages removexattr
removexattrat rename renameat renameat2 restart_syscall rmdir rseq rt_sigaction rt_sigpending
rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend rt_sigtimedwait rt_tgsigqueueinfo
sched_get_priority_max sched_get_priority_min sched_getaffinity sched_getattr sched_getparam
sched_getscheduler sched_rr_get_interval sched_setaffinity sched_setattr sched_setparam
sched_setscheduler sched_yield seccomp select semctl semget semop semtimedop sendfile sendmmsg sendmsg
sendto set_robust_list set_thread_area set_tid_address setfsgid setfsuid setgid setgroups setitimer
setpgid setpriority setregid setresgid setresuid setreuid setrlimit setsid setsockopt setuid setxattr
setxattrat shmat shmctl shmdt shmget shutdown sigaltstack signalfd signalfd4 socketpair splice stat
statfs statmount statx symlink symlinkat sync sync_file_range sync_file_range2 syncfs sysinfo tee tgkill
time timer_create timer_delete timer_getoverrun timer_gettime timer_settime timerfd_create
timerfd_gettime timerfd_settime times tkill truncate umask uname unlink unlinkat uretprobe utime
utimensat utimes vfork vmsplice wait4 waitid write writev
"""

ALLOWED = frozenset(_NAMES.split())
"""The system calls of Linux 6.13 on x86_64 and aarch64, except those in
`codehub.runtimes.seccomp`."""


@cache
def profile() -> str:
    """Return the profile.

    Calls that it does not name fail with EPERM, or ENOSYS if they are newer.
    """
    return json.dumps(
        {
            "defaultAction": "SCMP_ACT_ERRNO",
            "defaultErrnoRet": errno.EPERM,
            "syscalls": [
                _allow(*sorted(ALLOWED)),
                _allow("clone", value=NAMESPACE_FLAGS, op="SCMP_CMP_MASKED_EQ"),
                *(_allow("personality", value=value) for value in PERSONALITIES),
                *_families(),
                {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": errno.ENOSYS},
            ],
        },
        sort_keys=True,
    )


def _allow(*names: str, value: int | None = None, op: str = "SCMP_CMP_EQ") -> dict[str, Any]:
    rule: dict[str, Any] = {"names": list(names), "action": "SCMP_ACT_ALLOW"}
    if value is not None:
        rule["args"] = [{"index": 0, "value": value, "valueTwo": 0, "op": op}]
    return rule


def _families() -> list[dict[str, Any]]:
    """Allow all families but the denied ones. The rules of one call are alternatives."""
    least, most = min(DENIED_FAMILIES), max(DENIED_FAMILIES)
    between = [family for family in range(least, most) if family not in DENIED_FAMILIES]
    return [
        _allow("socket", value=least, op="SCMP_CMP_LT"),
        *(_allow("socket", value=family) for family in between),
        _allow("socket", value=most, op="SCMP_CMP_GT"),
    ]
