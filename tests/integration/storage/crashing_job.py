"""Runs a storage job that is killed (kill -9, by itself) just before its n-th effect on the world.

Effects are seen by Python's audit hooks, so the job itself is the real one:
`crashing_job.py N JOB_DIRECTORY`.
"""

import os
import signal
import sys

from codehub.storage.job import main

EFFECTS = {
    "os.rename",
    "os.mkdir",
    "os.remove",
    "os.rmdir",
    "os.chmod",
    "os.chown",
    "os.truncate",
    "subprocess.Popen",
    "fcntl.flock",
}


def kill_before(number: int) -> None:
    seen = 0

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal seen
        # os.open (whose mode is None) is how files are written durably and flushed.
        if event not in EFFECTS and not (event == "open" and arguments[1] is None):
            return
        seen += 1
        if seen == number:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


if __name__ == "__main__":
    kill_before(int(sys.argv[1]))
    sys.exit(main(sys.argv[2:]))
