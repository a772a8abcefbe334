"""Access of the gateway's group: it can connect to a workspace's sockets, and nothing else."""

import os
import socket
import stat
from pathlib import Path

import pytest

from codehub.runtimes.process.state_directory import StateDirectory

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to a group")
WORKSPACE, GATEWAY = 4321, 4322


def rights(path: Path) -> tuple[int, int, str]:
    facts = path.lstat()
    return facts.st_uid, facts.st_gid, oct(stat.S_IMODE(facts.st_mode))


def bind(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))
    path.chmod(0o600)


def listening_ide(path: Path) -> StateDirectory:
    """Return a directory of a gateway that ran as root, with a private IDE socket."""
    path.mkdir(mode=0o700)
    directory = StateDirectory(path)
    directory.prepare(WORKSPACE, False, {})
    bind(directory.bound_socket)
    os.chown(directory.bound_socket, WORKSPACE, WORKSPACE)
    bind(directory.port_broker_socket)
    return directory


def test_a_socket_is_published_for_the_group(tmp_path: Path) -> None:
    directory = listening_ide(tmp_path / "one")
    assert directory.publish_socket()
    assert rights(directory.socket) == (WORKSPACE, WORKSPACE, "0o600")
    assert rights(directory.socket.parent) == (0, 0, "0o700")

    for _ in range(2):  # like each observation, whatever the IDE does to its socket
        assert directory.publish_socket(GATEWAY)
        assert rights(directory.path) == (0, GATEWAY, "0o710")
        assert rights(directory.socket.parent) == (0, GATEWAY, "0o710")
        assert rights(directory.socket) == (WORKSPACE, GATEWAY, "0o660")
        assert rights(directory.port_broker_socket) == (0, GATEWAY, "0o660")
        assert rights(directory.io) == (WORKSPACE, WORKSPACE, "0o700")
        directory.bound_socket.chmod(0o600)


def test_the_target_of_a_link_is_not_changed(tmp_path: Path) -> None:
    directory = listening_ide(tmp_path / "one")
    bind(other := tmp_path / "other")
    directory.socket.symlink_to(other)
    directory.share_sockets(GATEWAY)
    assert rights(other) == (0, 0, "0o600")
