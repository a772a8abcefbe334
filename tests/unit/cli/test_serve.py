"""What the parts ask of the system before they serve."""

import subprocess
import sys

PROGRAM = """
import resource
from codehub.cli.part_main import allow_many_connections
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (256, most))
allow_many_connections()
assert resource.getrlimit(resource.RLIMIT_NOFILE) == (most, most)
"""


def test_a_low_soft_limit_of_open_files_is_raised() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)
