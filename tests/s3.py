"""Real S3 server for tests: versitygw, which `make install-tests` builds."""

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

import httpx
import pytest

from codehub.storage.archive.s3_requests import S3Requests
from codehub.ulids import new_id
from tests.services import TOOLS_DIR, free_port, short_temp_dir
from tests.waiting import PATIENCE, wait_for

PROGRAM = TOOLS_DIR / "bin" / "versitygw"
BUCKET = "archives"
REGION = "eu-test-1"
READER_KEY, READER_SECRET = "codehub-reader", "only-for-reading"
ACCESS_KEY, SECRET_KEY = "codehub-tests", "only-for-tests"


class S3Server:
    """Server with one bucket, in its own directory. `before` is put before its command."""

    def __init__(self, before: Sequence[str] = (), *, with_users: bool = False) -> None:
        self._before = before
        self._with_users = with_users
        self.directory = short_temp_dir()
        self.port = free_port()
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    @contextlib.contextmanager
    def running(cls, before: Sequence[str] = (), *, with_users: bool = False) -> Iterator[Self]:
        """Start a server, or skip the test if the program is missing."""
        if not PROGRAM.exists():
            pytest.skip("there is no S3 server: `make install-tests` builds one")
        server = cls(before, with_users=with_users)
        try:
            server.start()
            yield server
        finally:
            server.stop()
            shutil.rmtree(server.directory)

    def start(self) -> None:
        root, metadata = self.directory / "objects", self.directory / "metadata"
        (root / BUCKET).mkdir(parents=True, exist_ok=True)
        metadata.mkdir(exist_ok=True)
        options = ["--port", f"127.0.0.1:{self.port}", "--region", REGION, "--keep-alive", "--quiet"]
        if self._with_users:
            (self.directory / "users").mkdir(exist_ok=True)
            options += ["--iam-dir", str(self.directory / "users")]
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*self._before, PROGRAM, *options, "posix", "--sidecar", metadata, root],
                env={
                    "ROOT_ACCESS_KEY_ID": ACCESS_KEY,
                    "ROOT_SECRET_ACCESS_KEY": SECRET_KEY,
                    "PATH": os.defpath,
                },
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        wait_for(self._answers, "the S3 server to answer")

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def environment(self, endpoint: str | None = None) -> dict[str, str]:
        """Return the variables with which CodeHub and its jobs use the server."""
        return {
            "AWS_ENDPOINT_URL": endpoint or self.endpoint,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_REGION": REGION,
        }

    def add_reader(self) -> None:
        """Add the user of `reader_environment`, who may read the bucket and change nothing."""
        admin = [PROGRAM, "admin", "-a", ACCESS_KEY, "-s", SECRET_KEY, "-r", REGION, "-er", self.endpoint]
        user = ["create-user", "-a", READER_KEY, "-s", READER_SECRET, "-r", "user"]
        subprocess.run([*admin, *user], check=True, capture_output=True)
        self.allow_reader()

    def forbid_reader(self) -> None:
        requests = S3Requests.from_environment(BUCKET)
        assert requests is not None
        requests.send("DELETE", "", {"policy": ""})

    def allow_reader(self) -> None:
        names = [f"arn:aws:s3:::{BUCKET}", f"arn:aws:s3:::{BUCKET}/*"]
        statements = [
            {"Effect": "Allow", "Principal": {"AWS": [READER_KEY]}, "Action": [action], "Resource": [name]}
            for action, name in zip(("s3:ListBucket", "s3:GetObject"), names, strict=True)
        ]
        policy = json.dumps({"Version": "2012-10-17", "Statement": statements})
        digest = hashlib.sha256(policy.encode()).hexdigest()
        signing = ["--aws-sigv4", f"aws:amz:{REGION}:s3", "--user", f"{ACCESS_KEY}:{SECRET_KEY}"]
        sent = ["-H", f"x-amz-content-sha256: {digest}", "--data-binary", policy]
        url = f"{self.endpoint}/{BUCKET}?policy="
        subprocess.run(["curl", "-sS", "--fail", "-X", "PUT", *signing, *sent, url], check=True)

    def reader_environment(self) -> dict[str, str]:
        """Return the variables with which only the access part uses the server."""
        return {"ARCHIVE_READ_ACCESS_KEY_ID": READER_KEY, "ARCHIVE_READ_SECRET_ACCESS_KEY": READER_SECRET}

    def file(self, url: str, path: str) -> Path:
        """Return the file in which the server stores an object of the store `url`."""
        return self.directory / "objects" / url.removeprefix("s3://") / path

    def _answers(self) -> bool:
        assert self._process is not None and self._process.poll() is None, self._log()
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(self.endpoint, timeout=PATIENCE).status_code < 500
        return False

    def _log(self) -> str:
        return (self.directory / "log").read_text(errors="replace")[-4000:]


def new_store_url() -> str:
    """Return the URL of an unused prefix of the bucket."""
    return f"s3://{BUCKET}/{new_id()}"


def use(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Give this process, and the jobs that it starts, these AWS variables and no others."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)


def begin_upload(url: str, key: str) -> None:
    """Start an upload that is never finished."""
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    requests = S3Requests.from_environment(bucket)
    assert requests is not None
    requests.send("POST", f"{prefix}/{key}", {"uploads": ""})
