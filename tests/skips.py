"""Skips that fail: with CODEHUB_NO_SKIPS, a test that could have run must run."""

import os
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import pytest

INSTALLED = Path(__file__).parents[1] / ".make"
MACHINE_REASONS = (
    "root can read everything",
    "needs control groups for disks",
    "needs homes on a disk",
    "needs systemd's own hierarchy of control groups",
    "needs root and control groups of version 2",
    "needs a file system that counts links to 65,000",
    "immutable files cannot be made here",
    "an ordinary user cannot run this Python",
    "this kernel mounts no file system with user quotas",
)
"""Reasons that no installation can remove: the user, the kernel, the file system."""
OPTIONAL = {"there is no S3 server": "s3-server", "JupyterLab is missing": "jupyterlab"}
"""Reason of a skip -> stamp of `make install-tests` if the missing part was installed."""


def should_have_run(
    reason: str, environment: Mapping[str, str] = os.environ, installed: Path = INSTALLED
) -> bool:
    """Return whether a test that is skipped for this reason should have run."""
    if not environment.get("CODEHUB_NO_SKIPS") or reason.startswith(MACHINE_REASONS):
        return False
    return not any(
        reason.startswith(words) and not (installed / stamp).exists() for words, stamp in OPTIONAL.items()
    )


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    call: pytest.CallInfo[Any],
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.excinfo is not None and call.excinfo.errisinstance(pytest.skip.Exception):
        reason = str(call.excinfo.value)
        if should_have_run(reason):
            report.outcome = "failed"
            report.longrepr = f"skipped where it should have run: {reason}"
    return report
