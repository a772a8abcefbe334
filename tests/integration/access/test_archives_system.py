"""Downloads of archives on a complete `codehub up`, from a directory and from a real S3 server."""

import base64
import hashlib
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from codehub.access.app import DOWNLOADS_AT_ONCE
from codehub.storage.archive.open_object_store import open_object_store
from codehub.ulids import new_id
from tests import s3
from tests.integration.access.conftest import IMAGES, Workspace
from tests.integration.access.test_commands_system import bearer, make_token, revoke_tokens
from tests.integration.access.test_files_system import SAFE, _peak_kib, status
from tests.services import System
from tests.trees import chown_to_home_owner, make_tree, tree_hash
from tests.waiting import wait_for

MiB = 1 << 20
LARGE = 64 * MiB
"""More than all buffers between the store and a client that does not read."""
in_a_directory = pytest.mark.parametrize("system", ["directory"], indirect=True)
on_s3 = pytest.mark.parametrize("system", ["s3"], indirect=True)
DOCS = Path(__file__).parents[3] / "docs" / "archives.md"


@pytest.fixture(scope="module")
def reader_server() -> Iterator[s3.S3Server]:
    """An S3 server with a user that may read the bucket, and nothing else."""
    with s3.S3Server.running(with_users=True) as server:
        server.add_reader()
        yield server


@pytest.fixture(scope="module", params=["directory", "s3"])
def system(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    environment = {"GATEWAY_WORKERS": "1", "LIMITS_MAX_RUNNING_PER_USER": "9"}
    images = tmp_path_factory.mktemp("images") / "images.toml"
    images.write_text(IMAGES)
    environment["IMAGES_FILE"] = str(images)
    if request.param == "s3":
        server: s3.S3Server = request.getfixturevalue("reader_server")
        environment |= server.environment() | server.reader_environment()
        environment["ARCHIVE_URL"] = s3.new_store_url()
    system = System(environment)
    try:
        yield system.start()
    finally:
        system.close()


@pytest.fixture
def remove_object(
    system: System, reader_server: s3.S3Server, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], None]:
    """Remove an object from the store, as GC does."""
    s3.use(reader_server.environment(), monkeypatch)
    return lambda key: open_object_store(store_url(system)).remove(key)


def store_url(system: System) -> str:
    return system.environment().get("ARCHIVE_URL") or f"file://{system.data_dir}/archives"


class Archived:
    """A workspace of the admin with one archive, and calls about it."""

    def __init__(self, workspace: Workspace, size: int) -> None:
        self.workspace = workspace
        self.api = workspace.api
        self.url = f"{workspace.url}/archive"
        workspace.wish("STANDBY")
        wait_for(lambda: workspace.is_in("STANDBY"), "the workspace to stop")
        [self.home] = workspace.system.data_dir.glob(f"volumes/users/*/workspaces/{workspace.id}/home")
        make_tree(self.home, seed=1)
        with (self.home / "random").open("wb") as file:
            for _ in range(size // MiB):
                file.write(os.urandom(MiB))
        chown_to_home_owner(self.home)
        self.tree = tree_hash(self.home)
        self.archive()

    def archive(self) -> None:
        self.workspace.wish("ARCHIVED")
        wait_for(lambda: self.workspace.is_in("ARCHIVED"), "the workspace to be archived")

    @property
    def listed(self) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = self.api.get(f"{self.workspace.url}/archives").json()["items"]
        return items

    def key(self, name: str = "home.tar.zst") -> str:
        return f"{self.workspace.id}/{self.listed[0]['archive_op_id']}/{name}"

    def get(self, query: str = "", **headers: str) -> httpx.Response:
        return self.api.get(f"{self.url}{query}", headers=headers)


@pytest.fixture
def archived(workspace: Workspace) -> Archived:
    return Archived(workspace, 3 * MiB)


@pytest.fixture
def large(workspace: Workspace) -> Archived:
    return Archived(workspace, LARGE)


def documented_command() -> str:
    """Return the command with which the documentation unpacks `home.tar.zst`."""
    found = re.search(r"```sh\n(zstd -d < home\.tar\.zst.*?)```", DOCS.read_text(), re.DOTALL)
    assert found is not None
    return found[1]


def test_a_downloaded_archive_is_the_home_once_the_documented_command_has_unpacked_it(
    archived: Archived, tmp_path: Path
) -> None:
    [item] = archived.listed
    answer = archived.get()
    assert answer.status_code == 200, answer.text
    assert {name: answer.headers[name] for name in SAFE if name != "content-disposition"} == {
        name: SAFE[name] for name in SAFE if name != "content-disposition"
    }
    name = r'attachment; filename="one-\d{8}-\d{6}\.tar\.zst"'
    assert re.fullmatch(name, answer.headers["content-disposition"])
    assert answer.headers["content-length"] == str(len(answer.content)) == str(item["bytes"])
    digest = hashlib.sha256(answer.content)
    assert answer.headers["repr-digest"] == f"sha-256=:{base64.b64encode(digest.digest()).decode()}:"
    assert archived.get(f"?archive_op_id={item['archive_op_id']}").content == answer.content

    (tmp_path / "home.tar.zst").write_bytes(answer.content)
    subprocess.run(["sh", "-ec", documented_command()], cwd=tmp_path, check=True)
    assert tree_hash(tmp_path / "home") == archived.tree


def test_a_download_resumes_with_ranges_and_ends_with_the_same_bytes(archived: Archived) -> None:
    whole = archived.get()
    size, etag = len(whole.content), whole.headers["etag"]
    received = b""
    while len(received) < size:
        part = archived.api.get(
            archived.url,
            headers={"Range": f"bytes={len(received)}-{len(received) + MiB - 1}", "If-Range": etag},
        )
        assert part.status_code == 206
        end = min(len(received) + MiB, size)
        assert part.headers["content-range"] == f"bytes {len(received)}-{end - 1}/{size}"
        assert part.headers["repr-digest"] == whole.headers["repr-digest"]
        assert part.headers["content-length"] == str(end - len(received)) == str(len(part.content))
        received += part.content
    assert received == whole.content
    assert archived.get(Range="bytes=-5").content == whole.content[-5:]

    behind = archived.get(Range=f"bytes={size}-")
    assert (status(behind), behind.headers["content-range"]) == (
        (416, "RANGE_NOT_SATISFIABLE"), f"bytes */{size}",
    )  # fmt: skip
    for fields in ({"Range": "bytes=0-1,4-5"}, {"Range": "bytes=1-", "If-Range": '"another"'}):
        answer = archived.api.get(archived.url, headers=fields)
        assert (answer.status_code, answer.content == whole.content) == (200, True), fields
    known = archived.api.get(archived.url, headers={"If-None-Match": etag})
    assert (known.status_code, known.content) == (304, b"")

    head = archived.api.head(archived.url)
    assert (head.status_code, head.content) == (200, b"")
    for name in ("content-length", "etag", "repr-digest", "content-disposition", "accept-ranges", *SAFE):
        assert head.headers[name] == whole.headers[name], name


def test_what_is_no_archive_of_this_workspace_is_answered_clearly(
    archived: Archived, remove_object: Callable[[str], None]
) -> None:
    other = archived.api.post("/api/v1/workspaces", json={"name": "two", "desired_state": "STANDBY"}).json()
    url = f"/api/v1/workspaces/{other['id']}"
    theirs = Workspace(archived.workspace.system, archived.api, other["id"])
    wait_for(lambda: theirs.is_in("STANDBY"), "the other workspace")
    none_yet = archived.api.get(f"{url}/archive")
    assert status(none_yet) == (404, "ARCHIVE_NOT_FOUND")
    assert "no archive yet" in none_yet.json()["error"]["message"]

    own = archived.listed[0]["archive_op_id"]
    hostile = (
        "",
        "x",
        "..",
        "../..",
        f"{own}/../{own}",
        own.upper(),
        f"{own}%00",
        "%00",
        "'",
        "%ff",
        new_id(),
    )
    assert {query: status(archived.get(f"?archive_op_id={query}")) for query in hostile} == dict.fromkeys(
        hostile, (404, "ARCHIVE_NOT_FOUND")
    )
    assert status(archived.api.get(f"{url}/archive?archive_op_id={own}")) == (404, "ARCHIVE_NOT_FOUND")
    assert status(archived.get(f"?archive_op_id={'x' * 5000}")) == (422, "VALIDATION_ERROR")
    for fields in ({"Sec-Fetch-Site": "cross-site"}, {"Origin": "http://evil.example"}):
        for method in ("GET", "HEAD"):
            assert archived.api.request(method, archived.url, headers=fields).status_code == 403

    remove_object(archived.key())
    assert status(archived.get()) == (410, "GONE")
    remove_object(archived.key(".meta"))
    assert status(archived.get()) == (410, "GONE")
    archived.api.delete(f"{url}?without_archive=true&confirm=two")


def read_until_cut(response: httpx.Response, when: Callable[[], object]) -> None:
    """Read a little, make a change, and read on: the stream must end incomplete."""
    assert response.status_code == 200
    size, received = int(response.headers["content-length"]), 0
    pieces = response.iter_raw(chunk_size=64 << 10)
    received += len(next(pieces))
    when()
    with pytest.raises(httpx.TransportError):
        for piece in pieces:
            received += len(piece)
    assert received < size


def test_a_download_ends_with_its_token(large: Archived) -> None:
    token = bearer(make_token(large.workspace, "use"))
    with (
        httpx.Client(base_url=large.api.base_url, headers=token) as program,
        program.stream("GET", large.url) as response,
    ):
        read_until_cut(response, lambda: revoke_tokens(large.workspace))
        assert program.get(large.url).status_code == 401


def test_a_download_ends_when_its_workspace_is_deleted(large: Archived) -> None:
    with httpx.Client(base_url=large.api.base_url, cookies=large.api.cookies) as reader:
        with reader.stream("GET", large.url) as response:
            read_until_cut(response, lambda: large.api.delete(large.workspace.url).raise_for_status())
        assert status(reader.get(large.url)) == (404, "WORKSPACE_NOT_FOUND")
    assert large.api.post(f"{large.workspace.url}/undelete").is_success


def test_a_download_of_an_archive_that_is_removed_is_incomplete(
    large: Archived, remove_object: Callable[[str], None]
) -> None:
    with (
        httpx.Client(base_url=large.api.base_url, cookies=large.api.cookies) as reader,
        reader.stream("GET", large.url) as response,
    ):
        read_until_cut(response, lambda: remove_object(large.key()))


def test_slow_readers_are_served_in_bounded_memory_beside_a_restore(large: Archived) -> None:
    """The restore reads the same archive, and the next archiving replaces it."""
    pids = large.workspace.system.pids()
    whole = hashlib.sha256(large.get().content).digest()
    before = {name: _peak_kib(pids[name]) for name in ("access", "gateway")}
    with httpx.Client(base_url=large.api.base_url, cookies=large.api.cookies, timeout=None) as reader:
        opened = [
            reader.send(reader.build_request("GET", large.url), stream=True) for _ in range(DOWNLOADS_AT_ONCE)
        ]
        try:
            assert [response.status_code for response in opened] == [200] * DOWNLOADS_AT_ONCE
            assert status(reader.get(large.url)) == (429, "TOO_MANY_REQUESTS")
            large.workspace.wish("STANDBY")
            wait_for(lambda: large.workspace.is_in("STANDBY"), "the home to be restored")
            assert tree_hash(large.home) == large.tree
            large.archive()
            for response in opened:
                digest = hashlib.sha256()
                for piece in response.iter_raw():
                    digest.update(piece)
                assert digest.digest() == whole
        finally:
            for response in opened:
                response.close()
    for name, peak in before.items():
        assert _peak_kib(pids[name]) - peak < 80 << 10, name


@in_a_directory
def test_a_store_that_cannot_be_read_or_is_damaged_is_answered_clearly(archived: Archived) -> None:
    system = archived.workspace.system
    archives, aside = system.data_dir / "archives", system.data_dir / "run" / "aside"
    archives.rename(aside)
    try:
        answer = archived.get()
        assert status(answer) == (503, "ARCHIVE_STORE_UNAVAILABLE")
        assert answer.headers["retry-after"] == "10"
        assert str(system.data_dir) not in answer.text
    finally:
        aside.rename(archives)
    assert archived.get().status_code == 200
    meta = archives / archived.key(".meta")
    meta.write_bytes(meta.read_bytes().replace(b"sha256:", b"sha256:0", 1))
    assert status(archived.get()) == (502, "ARCHIVE_DAMAGED")


@on_s3
def test_only_the_credentials_that_read_are_used_for_downloads(
    archived: Archived, reader_server: s3.S3Server, remove_object: Callable[[str], None]
) -> None:
    """`remove_object` gives this process the credentials that write."""
    assert archived.get().status_code == 200
    reader_server.forbid_reader()
    try:
        assert status(archived.get()) == (503, "ARCHIVE_STORE_UNAVAILABLE")
        archived.workspace.wish("STANDBY")
        wait_for(lambda: archived.workspace.is_in("STANDBY"), "a job to restore with the others")
    finally:
        reader_server.allow_reader()
    assert archived.get().status_code == 200


@in_a_directory
@pytest.mark.skipif(os.geteuid() != 0, reason="only for root are the parts other users")
def test_an_archive_directory_of_an_earlier_version_is_read_after_an_upgrade(archived: Archived) -> None:
    system = archived.workspace.system
    content = archived.get().content
    system.stop()
    root = system.data_dir / "archives"
    for path in (root, *root.rglob("*")):
        os.chown(path, 0, 0)
        path.chmod((0o700 if path == root else 0o755) if path.is_dir() else 0o600)
    system.start()
    archived.api = system.client()

    def downloaded() -> bytes | None:
        answer = archived.get()
        return answer.content if answer.status_code == 200 else None

    assert wait_for(downloaded, "the coordinator to share the archives") == content
