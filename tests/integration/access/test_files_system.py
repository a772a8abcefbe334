"""Files on a complete `codehub up`: through the gateway and the access part, in a real sandbox."""

import hashlib
import io
import os
import socket
import tarfile
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.integration.access.conftest import Workspace
from tests.integration.access.test_commands_system import bearer, make_token, revoke_tokens
from tests.waiting import wait_for

MiB = 1 << 20
SAFE = {
    "content-type": "application/octet-stream",
    "content-disposition": "attachment",
    "x-content-type-options": "nosniff",
    "content-security-policy": "sandbox; default-src 'none'",
    "cross-origin-resource-policy": "same-origin",
}


class Files:
    """Calls about the files of a workspace."""

    def __init__(self, workspace: Workspace) -> None:
        self.api = workspace.api
        self.url = f"{workspace.url}/files"

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.api.get(f"{self.url}/content", params={"path": path}, **options)

    def put(self, path: str, content: Any, query: Any = None, **options: Any) -> httpx.Response:
        params = {"path": path, **(query or {})}
        return self.api.put(f"{self.url}/content", params=params, content=content, **options)

    def listed(self, path: str = "", **query: Any) -> Any:
        answer = self.api.get(self.url, params={"path": path, **query})
        assert answer.status_code == 200, answer.text
        return answer.json()

    def names(self, path: str = "") -> list[str]:
        return [entry["path"] for entry in self.listed(path)["entries"]]


@pytest.fixture
def files(workspace: Workspace) -> Files:
    return Files(workspace)


def status(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def test_a_file_is_written_read_moved_and_deleted(workspace: Workspace, files: Files) -> None:
    made = files.put("note.txt", b"first", {"mode": "640"})
    assert (made.status_code, made.json()["mode"]) == (201, "0640"), made.text
    read = files.get("note.txt")
    assert (read.status_code, read.content, read.headers["etag"]) == (200, b"first", made.headers["etag"])
    assert {name: read.headers[name] for name in SAFE} == SAFE
    assert read.headers["content-length"] == "5"
    head = files.api.head(f"{files.url}/content", params={"path": "note.txt"})
    assert (head.status_code, head.content, head.headers["etag"]) == (200, b"", read.headers["etag"])
    assert head.headers["content-length"] == "5"
    assert files.api.head(f"{files.url}/content", params={"path": "none"}).status_code == 404
    part = files.get("note.txt", headers={"Range": "bytes=1-3"})
    assert (part.status_code, part.content, part.headers["content-range"]) == (206, b"irs", "bytes 1-3/5")
    behind = files.get("note.txt", headers={"Range": "bytes=5-"})
    assert (behind.status_code, behind.headers["content-range"]) == (416, "bytes */5")
    assert files.get("note.txt", headers={"If-None-Match": read.headers["etag"]}).status_code == 304

    old = {"If-Match": read.headers["etag"]}
    replaced = files.put("note.txt", b"second", headers=old)
    assert (replaced.status_code, replaced.json()["mode"]) == (200, "0640")
    assert status(files.put("note.txt", b"third", headers=old)) == (412, "PRECONDITION_FAILED")
    assert status(files.put("note.txt", b"x", headers={"If-None-Match": "*"})) == (412, "PRECONDITION_FAILED")
    owner = workspace.output(workspace.start("stat -c '%U %a' note.txt; id -un")).text.split()
    assert owner[0] == owner[2] and owner[1] == "640"

    post = workspace.api.post
    assert post(f"{files.url}/directory", json={"path": "a/b", "parents": True}).status_code == 201
    assert post(f"{files.url}/directory", json={"path": "a/b", "parents": True}).status_code == 200
    moved = post(f"{files.url}/move", json={"path": "note.txt", "to": "a/b/note"})
    assert moved.json()["path"] == "a/b/note"
    found = workspace.api.get(f"{files.url}/search", params={"q": "secon", "in": "contents"}).json()
    assert found["matches"] == [
        {"path": "a/b/note", "encoded": False, "kind": "file", "line": 1, "text": "second"}
    ]
    delete = workspace.api.delete
    assert status(delete(f"{files.url}/content?path=a")) == (409, "FILE_CONFLICT")
    assert delete(f"{files.url}/content?path=a&recursive=true").status_code == 204
    assert files.names() == []


def test_names_that_are_not_utf8_are_percent_encoded(workspace: Workspace, files: Files) -> None:
    url = f"{files.url}/content"
    assert workspace.api.put(url, params={"path_encoded": "50%25-%FF"}, content=b"x").status_code == 201
    assert files.put("50%-é", b"y").status_code == 201
    entries = files.listed()["entries"]
    assert [(entry["path"], entry["encoded"]) for entry in entries] == [("50%-é", False), ("50%25-%FF", True)]
    assert workspace.api.get(url, params={"path_encoded": "50%25-%FF"}).content == b"x"


def test_hostile_paths_and_homes_are_answered_clearly(workspace: Workspace, files: Files) -> None:
    script = (
        "mkfifo fifo; ln -s / root; ln -s loop loop; ln -s /proc/self/exe exe; mkdir closed; chmod 0 closed"
    )
    workspace.output(workspace.start(script))
    expected = {
        "missing": (404, "NOT_FOUND"),
        "fifo": (409, "FILE_CONFLICT"),
        "/dev/zero": (409, "FILE_CONFLICT"),
        "": (409, "FILE_CONFLICT"),
        "root/etc/shadow": (403, "FORBIDDEN"),
        "../../../../etc/shadow": (403, "FORBIDDEN"),
        "/proc/1/environ": (403, "FORBIDDEN"),
        "exe": (403, "FORBIDDEN"),
        "loop": (422, "VALIDATION_ERROR"),
        "a\0b": (422, "VALIDATION_ERROR"),
        "closed/x": (403, "FORBIDDEN"),
        "fifo/x": (409, "FILE_CONFLICT"),
        "x" * 300: (422, "VALIDATION_ERROR"),
    }
    assert {path: status(files.get(path)) for path in expected} == expected
    assert status(files.put("closed/x", b"x")) == (403, "FORBIDDEN")
    answer = workspace.api.put(f"{files.url}/tar?path=x", content=b"no tar".ljust(1024))
    assert status(answer) == (422, "VALIDATION_ERROR")


def test_a_page_of_another_site_reads_no_file(files: Files) -> None:
    files.put("secret", b"x")
    for headers in ({"Sec-Fetch-Site": "cross-site"}, {"Origin": "http://evil.example"}):
        assert files.get("secret", headers=headers).status_code == 403


def test_large_files_and_trees_stream_both_ways(workspace: Workspace, files: Files) -> None:
    sent, received = hashlib.sha256(), hashlib.sha256()

    def body() -> Iterator[bytes]:
        for _ in range(48):
            piece = os.urandom(1024) * 1024
            sent.update(piece)
            yield piece

    assert files.put("large", body()).json()["size"] == 48 * MiB
    with workspace.api.stream("GET", f"{files.url}/content", params={"path": "large"}) as response:
        for piece in response.iter_raw():
            received.update(piece)
    assert sent.digest() == received.digest()
    packed = workspace.api.get(f"{files.url}/tar")
    assert {name: packed.headers[name] for name in SAFE} == SAFE
    unpacked = workspace.api.put(f"{files.url}/tar", params={"path": "copy"}, content=packed.content)
    assert unpacked.json() == {"entries": 1, "bytes": 48 * MiB}
    compared = workspace.output(workspace.start("cmp large copy/large && echo same"))
    assert compared.content == b"same\n"
    with tarfile.open(fileobj=io.BytesIO(packed.content)) as tar:
        assert tar.getnames() == ["large"]


def test_a_client_that_goes_in_the_middle_of_an_upload_leaves_the_old_file(
    workspace: Workspace, files: Files
) -> None:
    files.put("file", b"old")
    address = urlsplit(str(workspace.api.base_url))
    [(name, value)] = workspace.credential.items()
    head = (
        f"PUT {files.url}/content?path=file HTTP/1.1\r\nHost: {address.netloc}\r\n{name}: {value}\r\n"
        f"Content-Length: {64 * MiB}\r\n\r\n"
    )
    with socket.create_connection((address.hostname, address.port)) as connection:
        connection.sendall(head.encode() + bytes(8 * MiB))
        wait_for(lambda: workspace.processes("codehub-files") > 0, "the upload to begin")
    wait_for(lambda: workspace.processes("codehub-files") == 0, "its agent to end")
    assert files.get("file").content == b"old"
    assert files.names() == ["file"]


def test_files_wake_their_workspace_only_on_request(workspace: Workspace, files: Files) -> None:
    files.put("file", b"kept")
    workspace.wish("STANDBY")
    wait_for(lambda: workspace.is_in("STANDBY"), "the workspace to stop")
    refused = files.get("file")
    assert refused.status_code == 409 and "wake" in refused.json()["error"]["message"]
    woken = workspace.api.get(f"{files.url}/content", params={"path": "file", "wake": "true"})
    assert (woken.status_code, woken.content) == (200, b"kept")


def test_tokens_use_files_by_scope_and_count_only_when_they_write(workspace: Workspace, files: Files) -> None:
    use = bearer(make_token(workspace, "use"))
    with httpx.Client(base_url=workspace.api.base_url) as program:
        url, path = f"{files.url}/content", {"path": "file"}
        assert program.put(url, params=path, content=b"x", headers=use).status_code == 201
        assert program.get(url, params=path, headers=use).content == b"x"
        assert program.get(url, params=path).status_code == 401
        assert (
            program.get(f"{files.url}/tar", headers=use | {"Sec-Fetch-Site": "cross-site"}).status_code == 200
        )

        used_at = workspace.api.get(workspace.url).json()["last_access_at"]
        for query in (url, files.url, f"{files.url}/tar", f"{files.url}/search?q=x"):
            assert program.get(query, params=None if "?" in query else path, headers=use).is_success
        assert workspace.api.get(workspace.url).json()["last_access_at"] == used_at

        revoke_tokens(workspace)
        wait_for(  # the gateway answers 503 to a call that the revocation interrupts
            lambda: program.get(url, params=path, headers=use).status_code == 401, "the token to be unknown"
        )
        read = bearer(make_token(workspace, "read", "manage"))
        assert program.get(url, params=path, headers=read).status_code == 403
    revoke_tokens(workspace)


def test_a_download_is_not_held_in_memory_and_ends_with_its_client(
    workspace: Workspace, files: Files
) -> None:
    workspace.output(workspace.start("truncate -s 2G big"))
    pids = workspace.system.pids()
    before = {name: _peak_kib(pids[name]) for name in ("access", "gateway")}
    received = 0
    with workspace.api.stream("GET", f"{files.url}/content", params={"path": "big"}) as response:
        assert response.headers["content-length"] == str(2 << 30)
        for piece in response.iter_raw():
            received += len(piece)
            if received > 200 * MiB:
                break
    wait_for(lambda: workspace.processes("codehub-files") == 0, "the agent to end")
    for name, peak in before.items():
        assert _peak_kib(pids[name]) - peak < 50 << 10, name


def _peak_kib(pid: int) -> int:
    with open(f"/proc/{pid}/status", encoding="utf-8") as status:
        return int(next(line for line in status if line.startswith("VmHWM:")).split()[1])
