"""Storage jobs that stay in the middle of their work."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

_RECORDS = {"create": 124, "extract": 8}
"""Of 256 KiB each. An archive shows its first bytes late; a restore divides them among several tars."""


@contextlib.contextmanager
def sleepy_tar() -> Iterator[None]:
    """From here on storage jobs have a tar that falls asleep: after 31 MiB read, or 2 MiB written."""
    with tempfile.TemporaryDirectory(prefix="ch-tar-") as directory:
        fake = Path(directory, "tar")
        tar = f"exec {shutil.which('tar')} --checkpoint-action=sleep=600"
        sleeps = [f'--{mode}) {tar} --checkpoint={records} "$@" ;;' for mode, records in _RECORDS.items()]
        fake.write_text("\n".join(["#!/bin/sh", 'case "$1" in', *sleeps, "esac", ""]))
        Path(directory).chmod(0o755)
        fake.chmod(0o755)
        with patch.dict(os.environ, PATH=f"{directory}:{os.environ['PATH']}"):
            yield
