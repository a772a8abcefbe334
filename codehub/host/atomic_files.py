"""Files that are replaced in one step. The keeper's modules import this: import little here."""

from __future__ import annotations

import os
from pathlib import Path


def replace_file(
    path: Path,
    data: bytes,
    *,
    staged: Path | None = None,
    mode: int = 0o600,
    group: int | None = None,
    durable: bool = False,
) -> None:
    """Replace a file in one step, so that a reader sees the old or the new content, never a part.

    The content is written to `staged` (by default the path with `.tmp` appended) and renamed. If
    the process is killed, the next writer takes that file over. So writers of one file hold a lock,
    or stage elsewhere. `durable` flushes the content, but not the directory that names it.
    """
    staged = path.with_name(f"{path.name}.tmp") if staged is None else staged
    descriptor = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            if group is not None:
                os.fchown(descriptor, -1, group)
            if mode != 0o600:
                os.fchmod(descriptor, mode)
            file.write(data)
            file.flush()
            if durable:
                os.fsync(descriptor)
        staged.rename(path)
    except OSError:
        staged.unlink(missing_ok=True)
        raise
