"""No process of a running system loads Rich, which structlog would load for tracebacks."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "start",
    [
        pytest.param("from codehub.cli.part_main import load_all; load_all(docker=True)", id="parts"),
        pytest.param("from codehub import log; import codehub.cli.up", id="codehub up"),
    ],
)
def test_rich_is_not_loaded(start: str) -> None:
    check = f"{start}; import sys; assert 'structlog' in sys.modules; assert 'rich' not in sys.modules"
    subprocess.run([sys.executable, "-c", check], check=True)
