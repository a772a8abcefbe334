"""Storage jobs that pause in the middle of an archive or a restore."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import patch

from tests.waiting import wait_for


@contextlib.contextmanager
def _directory() -> Iterator[str]:
    """Make a temporary directory, and remove it although a tar may still create a file in it."""
    path = tempfile.mkdtemp(prefix="ch-tar-")
    try:
        yield path
    finally:
        wait_for(lambda: shutil.rmtree(path, ignore_errors=True) or not Path(path).exists(), f"no {path}")


@contextlib.contextmanager
def pausing_tar(create: int = 124, extract: int = 8) -> Iterator[Callable[[], bool]]:
    """Give storage jobs a tar that pauses after so many records of 256 KiB; yield whether one has.

    An archive shows its first bytes late. A restore divides the records among several tars.
    """
    with _directory() as directory:
        fake, paused = Path(directory, "tar"), Path(directory, "paused")
        actions = f"--checkpoint-action=exec='touch {paused}' --checkpoint-action=sleep=600"
        tar = f"exec {shutil.which('tar')} {actions}"
        modes = {"create": create, "extract": extract}
        cases = [f'--{mode}) {tar} --checkpoint={records} "$@" ;;' for mode, records in modes.items()]
        fake.write_text("\n".join(["#!/bin/sh", 'case "$1" in', *cases, "esac", ""]))
        Path(directory).chmod(0o755)
        fake.chmod(0o755)
        with patch.dict(os.environ, PATH=f"{directory}:{os.environ['PATH']}"):
            yield paused.exists
