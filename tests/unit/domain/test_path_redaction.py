"""Messages to users contain no path of the host."""

import pytest

from codehub.domain.path_redaction import PathRedactor

HOME = "/var/lib/codehub/volumes/users/01u/workspaces/01w/home"
PATHS = PathRedactor(
    {
        "/var/lib/codehub": "the data directory",
        "/var/lib/codehub/archives": "the archive store",
        "/run/docker.sock": "its socket",
    }
)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("nothing of the kind", "nothing of the kind"),
        ("/var/lib/codehub is full", "the data directory is full"),
        ("/var/lib/codehub/runtime/01w/io: gone", "the data directory: gone"),
        (
            "[Errno 17] File exists: '/var/lib/codehub/runtime/01w'",
            "[Errno 17] File exists: 'the data directory'",
        ),
        (f"the home {HOME} is missing", "the home ~ is missing"),
        (f"{HOME}/.ssh/id: Permission denied", "~/.ssh/id: Permission denied"),
        (f"cannot remove ({HOME}/a), sorry", "cannot remove (~/a), sorry"),
        ("/var/lib/codehub/volumes/users/01u/workspaces/01w/.fence is odd", "the data directory is odd"),
        (
            "the store file:///var/lib/codehub/archives does not answer",
            "the store the archive store does not answer",
        ),
        ("at unix:///run/docker.sock: no", "at its socket: no"),
        ("/var/lib/codehub and /var/lib/codehub/x", "the data directory and the data directory"),
        ("/var/lib/codehub2/x", "/var/lib/codehub2/x"),
        ("/srv/var/lib/codehub", "/srv/var/lib/codehub"),
        ("/home/coder/project", "/home/coder/project"),
    ],
)
def test_paths_of_the_host_are_redacted(text: str, shown: str) -> None:
    assert PATHS.redact(text) == shown


def test_without_roots_nothing_changes() -> None:
    assert PathRedactor().redact("/var/lib") == PathRedactor({"/": "all"}).redact("/var/lib") == "/var/lib"
