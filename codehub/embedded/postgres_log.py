"""Reasons in the log of PostgreSQL for its end, with their remedies."""

import re
from pathlib import Path
from typing import Final

_FATAL: Final = re.compile(r"(?:\b(?:FATAL|PANIC|error):|^postgres:)\s+(.*)")
"""Lines of the server and of initdb. An ERROR ends only a statement, not the server."""

_CAUSES: Final = (
    (
        ("No space left on device", "Disk quota exceeded"),
        "its disk has no bytes or no inodes left. Make room on the disk of {cluster}: remove files of other "
        "programs, or delete postgres.reserve beside it, which frees 64 MiB at once.",
    ),
    (
        ("has wrong ownership", "has invalid permissions", "Permission denied", "Operation not permitted"),
        "its files belong to another user, or their permissions are wrong. Give {cluster} and everything in "
        "it to the user that PostgreSQL runs as (chown -R), with mode 0700.",
    ),
    (
        ("already exists", "Address already in use", "already in use", "another postmaster"),
        "another server uses its data directory, its socket or its port. End that server: `ps` shows a "
        "postgres with {cluster}.",
    ),
    (
        ("control file", "checkpoint record", "database files are incompatible with server"),
        "its control file or its write-ahead log is damaged, or of another version of PostgreSQL. Restore "
        "{cluster} from a backup. Homes and archives are not affected.",
    ),
    (
        ("Cannot allocate memory",),
        "the machine has no memory left for it. Stop other programs, or add memory.",
    ),
)  # fmt: skip
"""The first entry with a text that is in the log is the cause."""


def exit_cause(log: str, cluster: Path) -> str | None:
    """Return the cause in a sentence, or None. `log` is that of the last run only."""
    fatal = [found[1].strip() for line in log.splitlines() if (found := _FATAL.search(line))]
    for texts, advice in _CAUSES:
        if any(text in line for text in texts for line in fatal):
            return f"PostgreSQL ended: {advice.format(cluster=cluster)} PostgreSQL reports: {fatal[-1]}"
    return f"PostgreSQL ended: {fatal[-1]}" if fatal else None
