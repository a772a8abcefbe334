"""The users of the API and the gateway, and their access to directories of root."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from codehub.cli import part_users
from codehub.cli.errors import CommandError
from codehub.cli.findings import Severity
from codehub.cli.part_mounts import closed_directories
from codehub.settings import load
from tests.services import short_temp_dir

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root chooses users")
CHOOSE = """
import sys
from codehub.cli import part_users
from codehub.settings import load
print(part_users.choose_part_users(load(data_dir=sys.argv[1])).why_root)
"""


@pytest.fixture
def data_dir() -> Iterator[Path]:
    path = short_temp_dir()
    yield path
    path.rmdir()


def uids(data_dir: Path, **given: int) -> list[int | None]:
    users = part_users.choose_part_users(load(data_dir=data_dir, **given))
    assert users.why_root == ""
    return [None if user is None else user.uid for user in (users.api, users.gateway)]


def test_user_ids_are_next_to_those_of_workspaces(data_dir: Path) -> None:
    assert uids(data_dir) == [1_999_999, 1_999_998]
    assert uids(data_dir, workspace_uid_base=70_000) == [69_999, 69_998]
    assert uids(data_dir, workspace_uid_base=65_536) == [65_533, 65_532], "65534 is nobody"


def test_user_ids_can_be_chosen_and_0_keeps_root(data_dir: Path) -> None:
    assert uids(data_dir, api_uid=1234, gateway_uid=1235) == [1234, 1235]
    assert uids(data_dir, api_uid=0, gateway_uid=0) == [None, None]
    with pytest.raises(CommandError, match="would both run as user id 1999998: change API_UID"):
        uids(data_dir, api_uid=1_999_998)
    with pytest.raises(CommandError, match="would both run as user id 1999999: change ACCESS_UID"):
        uids(data_dir, access_uid=1_999_999)


def test_the_access_part_has_a_user_unless_it_needs_the_docker_engine(data_dir: Path) -> None:
    found = part_users.choose_part_users(load(data_dir=data_dir)).access
    assert found is not None and found.uid == 1_999_996
    assert part_users.choose_part_users(load(data_dir=data_dir, runtime="docker")).access is None


def test_doctor_reports_the_users(data_dir: Path) -> None:
    [found] = part_users.check_users(load(data_dir=data_dir))
    message = (
        "`codehub up` runs the API as user id 1999999, the gateway as 1999998, the access part as 1999996"
    )
    assert (found.severity, found.message) == (Severity.OK, message)
    [found] = part_users.check_users(load(data_dir=data_dir, gateway_uid=0))
    assert (found.severity, found.message, found.advice) == (
        Severity.WARN, "these parts run as root: gateway", "unset GATEWAY_UID",
    )  # fmt: skip


def test_doctor_warns_of_an_access_part_that_could_delete_archives(data_dir: Path) -> None:
    s3 = {"data_dir": data_dir, "archive_url": "s3://a/b"}
    _, found = part_users.check_users(load(**s3))
    assert found.severity is Severity.WARN and "can also delete them" in found.message
    reader = {"archive_read_access_key_id": "a", "archive_read_secret_access_key": "b"}
    assert len(part_users.check_users(load(**s3, **reader))) == 1


def test_parts_do_not_get_the_secrets_of_the_archive_store() -> None:
    secrets = {"ARCHIVE_URL": "s3://a/b", "AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "key"}
    assert part_users.reduced_environment({"PORT": "80", "HOME": "/root"} | secrets) == {
        "PORT": "80",
        "HOME": "/nonexistent",
    }


def test_the_access_part_gets_what_reads_archives_and_nothing_that_writes_them() -> None:
    writes = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "key", "AWS_SESSION_TOKEN": "token"}
    reads = {"ARCHIVE_READ_ACCESS_KEY_ID": "reader", "ARCHIVE_READ_SECRET_ACCESS_KEY": "reads"}
    given = {"ARCHIVE_URL": "s3://a/b", "AWS_REGION": "r"} | writes
    assert part_users.reduced_environment(given | reads) == {"HOME": "/nonexistent"}
    kept = part_users.reduced_environment(given | reads, reads_archives=True)
    expected = {
        "HOME": "/nonexistent",
        "ARCHIVE_URL": "s3://a/b",
        "AWS_REGION": "r",
        "AWS_ACCESS_KEY_ID": "reader",
        "AWS_SECRET_ACCESS_KEY": "reads",
    } | reads
    assert part_users.reader_environment(kept) == expected
    assert part_users.reader_environment(expected) == expected
    assert part_users.reader_environment(given) == given, "without a reader, the credentials that there are"


def test_archives_below_a_closed_directory_are_shown_to_the_access_part(
    data_dir: Path, tmp_path: Path
) -> None:
    (tmp_path / "closed").mkdir(mode=0o700)
    url = f"file://{tmp_path}/closed/archives"
    users = part_users.choose_part_users(load(data_dir=data_dir, archive_url=url))
    assert users.access is not None and users.api is not None and users.why_root == ""
    assert [f"{tmp_path}/closed/archives"] in users.access.shown.values(), "also before it exists"
    assert [f"{tmp_path}/closed/archives"] not in users.api.shown.values()


def test_only_a_low_port_takes_a_capability(data_dir: Path) -> None:
    for port, needs_one in ((443, True), (8080, False)):
        gateway = part_users.choose_part_users(load(data_dir=data_dir, port=port)).gateway
        assert gateway is not None and gateway.may_bind_low_ports == needs_one


def test_trees_are_grouped_by_their_outermost_closed_directory(data_dir: Path) -> None:
    closed, program = data_dir / "closed", data_dir / "closed" / "inner" / "program"
    program.mkdir(parents=True)
    link = data_dir / "link"
    link.symlink_to(closed)
    try:
        assert closed_directories([program]) == {}
        (closed / "inner").chmod(0o700)
        assert closed_directories([program]) == {str(closed / "inner"): [str(program)]}
        closed.chmod(0o700)
        given = [program, program / "within", link / "inner" / "program", link / "other"]
        assert closed_directories(given) == {str(closed): [str(program), str(closed / "other")]}
    finally:
        link.unlink()
        for path in (program, program.parent, closed):
            path.rmdir()


def test_below_a_closed_directory_parts_need_a_mount_namespace(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o700)
    data_dir = tmp_path / "closed" / "data"
    data_dir.mkdir(mode=0o711)
    assert uids(data_dir) == [1_999_999, 1_999_998]
    unable = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]
    command = [*unable, sys.executable, "-c", CHOOSE, str(data_dir)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    refused = "a mount namespace cannot be made (Operation not permitted)"
    assert done.stdout.strip() == f"user id 1999999 cannot run them: [Errno 1] {refused}"
