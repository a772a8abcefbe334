"""S3 requests: signatures, URLs, and the checksum of an upload in parts."""

import base64
import hashlib
import socket
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from codehub.storage.archive import s3_requests
from codehub.storage.archive.s3_object_store import PartHashes
from codehub.storage.archive.s3_requests import S3Requests, UnfinishedUpload
from codehub.storage.archive.sigv4 import AwsCredentials, encoded_query, signed_headers
from codehub.storage.errors import StoreTrouble
from tests.s3 import use
from tests.waiting import PATIENCE

PUBLISHED = AwsCredentials("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
"""Credentials of the examples in Amazon's description of Signature Version 4 for S3."""


@pytest.mark.parametrize(
    ("query", "signature"),
    [
        ({"lifecycle": ""}, "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"),
        (
            {"prefix": "J", "max-keys": "2"},
            "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
        ),
    ],
)
def test_a_signature_is_the_published_one(query: dict[str, str], signature: str) -> None:
    url = f"https://examplebucket.s3.amazonaws.com/?{encoded_query(query)}"
    headers = signed_headers("GET", url, {}, PUBLISHED, "us-east-1", datetime(2013, 5, 24, tzinfo=UTC))
    assert headers["authorization"].endswith(f"Signature={signature}")


def test_a_session_token_is_signed_and_no_secret_is_shown() -> None:
    credentials = AwsCredentials("key", "the secret", "the token")
    headers = signed_headers("GET", "https://s3/b", {}, credentials, "us-east-1", datetime.now(UTC))
    assert headers["x-amz-security-token"] == "the token"
    assert "x-amz-security-token" in headers["authorization"]
    assert "the" not in repr(credentials)


@pytest.mark.parametrize(
    ("environment", "url"),
    [
        ({}, "https://s3.us-east-1.amazonaws.com/b"),
        ({"AWS_DEFAULT_REGION": "eu-west-1"}, "https://s3.eu-west-1.amazonaws.com/b"),
        ({"AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "true"}, "https://b.s3.us-east-1.amazonaws.com"),
        ({"AWS_ENDPOINT_URL": "http://store:9000/"}, "http://store:9000/b"),
    ],
)
def test_the_bucket_url_is_that_of_the_store_library(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], url: str
) -> None:
    use({"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", **environment}, monkeypatch)
    requests = S3Requests.from_environment("b")
    assert requests is not None
    assert requests.bucket_url == url


def test_without_credentials_in_the_environment_nothing_is_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    use({"AWS_REGION": "eu-west-1"}, monkeypatch)
    assert S3Requests.from_environment("b") is None


@pytest.mark.parametrize(
    "chunks", [[b"abcdefghij"], [b"a", b"bcde", b"", b"fghi", b"j"], [b"abcdefgh", b"ij"]]
)
def test_parts_are_hashed_where_they_are_cut(chunks: list[bytes]) -> None:
    hashes = PartHashes(4)
    assert b"".join(hashes.update(chunks)) == b"abcdefghij"
    digests = b"".join(hashlib.sha256(part).digest() for part in (b"abcd", b"efgh", b"ij"))
    assert hashes.combined() == f"{base64.b64encode(hashlib.sha256(digests).digest()).decode()}-3"


def test_a_service_that_never_answers_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_requests, "_PAUSES", ())
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/b"
        requests = S3Requests(url, "us-east-1", PUBLISHED, seconds=0.05)
        with pytest.raises(StoreTrouble, match="it did not answer in time"):
            requests.checksum("key")


def test_an_upload_whose_parts_may_not_be_listed_counts_as_empty() -> None:
    """Credentials that may list uploads, but not their parts, must not stop every listing."""
    upload = UnfinishedUpload("key", "upload", datetime.now(UTC))
    with ThreadingHTTPServer(("127.0.0.1", 0), _Forbidding) as service:
        Thread(target=service.serve_forever, args=(0.02,), daemon=True).start()
        url = f"http://127.0.0.1:{service.server_port}/b"
        requests = S3Requests(url, "us-east-1", PUBLISHED, seconds=PATIENCE)
        assert requests.uploaded_bytes(upload) == 0
        service.shutdown()


class _Forbidding(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_error(403)
