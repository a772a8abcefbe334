"""Storage jobs that stay in the middle of their work."""

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
    """A temporary directory in which a second tar may still make a file while it is removed."""
    path = tempfile.mkdtemp(prefix="ch-tar-")
    try:
        yield path
    finally:
        wait_for(lambda: shutil.rmtree(path, ignore_errors=True) or not Path(path).exists(), f"no {path}")


@contextlib.contextmanager
def sleepy_tar(create: int = 124, extract: int = 8) -> Iterator[Callable[[], bool]]:
    """From here on storage jobs have a tar that falls asleep; yields whether one has.

    It does so after this many records of 256 KiB. An archive shows its first bytes late; a restore divides
    the records among several tars.
    """
    with _directory() as directory:
        fake, asleep = Path(directory, "tar"), Path(directory, "asleep")
        actions = f"--checkpoint-action=exec='touch {asleep}' --checkpoint-action=sleep=600"
        tar = f"exec {shutil.which('tar')} {actions}"
        modes = {"create": create, "extract": extract}
        sleeps = [f'--{mode}) {tar} --checkpoint={records} "$@" ;;' for mode, records in modes.items()]
        fake.write_text("\n".join(["#!/bin/sh", 'case "$1" in', *sleeps, "esac", ""]))
        Path(directory).chmod(0o755)
        fake.chmod(0o755)
        with patch.dict(os.environ, PATH=f"{directory}:{os.environ['PATH']}"):
            yield asleep.exists
