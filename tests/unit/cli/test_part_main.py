"""Limits and warnings of the parts at their start."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import resource
from codehub.cli.part_main import raise_open_file_limit
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (256, most))
raise_open_file_limit()
assert resource.getrlimit(resource.RLIMIT_NOFILE) == (most, most)
"""


def test_a_low_soft_limit_of_open_files_is_raised() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)


@pytest.mark.parametrize(("part", "warned"), [("gateway", True), ("api", True), ("coordinator", False)])
def test_a_part_that_serves_plain_http_logs_a_warning(part: str, warned: bool) -> None:
    given = {
        "DATABASE_URL": "postgresql:///none",
        "REDIS_URL": "unix:///none",
        "PUBLIC_BASE_URL": "http://hub.example.org",
        "APPS_DOMAIN": "apps.example.net",
        "ALLOW_INSECURE_HTTP": "1",
    }
    assert ("anyone on the network can read passwords" in logged(part, given)) is warned


@pytest.mark.parametrize(("part", "warned"), [("gateway", True), ("api", False)])
def test_the_gateway_logs_which_proxies_let_clients_forge_their_address(part: str, warned: bool) -> None:
    given = {
        "DATABASE_URL": "postgresql:///none",
        "REDIS_URL": "unix:///none",
        "TRUSTED_PROXIES": "10.0.0.1, 0.0.0.0/0",
    }
    assert ("TRUSTED_PROXIES has 0.0.0.0/0" in logged(part, given)) is warned


def logged(part: str, given: dict[str, str]) -> str:
    program = f"from codehub.cli.part_main import _settings; _settings({part!r})"
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, env=os.environ | given
    )
    return done.stdout + done.stderr
