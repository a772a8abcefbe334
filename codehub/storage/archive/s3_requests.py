"""S3 requests that the store library lacks: unfinished uploads and checksums (ADR 0012)."""

import os
import time
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from http.client import HTTPException, HTTPMessage, HTTPResponse
from typing import Self
from urllib.error import HTTPError
from urllib.parse import quote
from xml.etree import ElementTree

from codehub.storage.archive.sigv4 import AwsCredentials, encoded_query, signed_headers
from codehub.storage.errors import StoreTrouble

_PAUSES = (0.2, 1.0)
_MAX_RESPONSE = 16 << 20

DEFAULT_TIMEOUT = "120s"


def endpoint() -> str:
    """Return the URL of the service, or an empty string for AWS itself."""
    return os.environ.get("AWS_ENDPOINT_URL", "").rstrip("/")


def timeout() -> str:
    """Return how long one request may take, in the notation of the store library (`120s`)."""
    return os.environ.get("AWS_TIMEOUT", DEFAULT_TIMEOUT)


@dataclass(frozen=True)
class UnfinishedUpload:
    key: str
    upload_id: str
    initiated: datetime


class RequestRejected(StoreTrouble):
    """Rejection of a request by the service, which a retry does not fix."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status

    @property
    def is_gone(self) -> bool:
        return self.status == 404

    @property
    def is_unsupported(self) -> bool:
        """Whether these credentials, or this service, do not allow such requests at all."""
        return self.status in (400, 403, 405, 501)


@dataclass(frozen=True)
class S3Requests:
    """Client for signed requests to one bucket."""

    bucket_url: str
    region: str
    credentials: AwsCredentials
    seconds: float

    @classmethod
    def from_environment(cls, bucket: str) -> Self | None:
        """Return None if the environment has no credentials, as with the role of a machine."""
        environ = os.environ
        key, secret = environ.get("AWS_ACCESS_KEY_ID"), environ.get("AWS_SECRET_ACCESS_KEY")
        if not key or not secret:
            return None
        region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or "us-east-1"
        credentials = AwsCredentials(key, secret, environ.get("AWS_SESSION_TOKEN") or None)
        return cls(_bucket_url(bucket, region), region, credentials, float(timeout().removesuffix("s")))

    def unfinished_uploads(self, prefix: str) -> Iterator[UnfinishedUpload]:
        """Yield uploads of keys with this prefix that were neither completed nor aborted."""
        marker: dict[str, str] = {}
        while True:
            listing = self._xml("", {"uploads": "", "prefix": prefix, **marker})
            for upload in listing.iterfind("{*}Upload"):
                initiated = datetime.fromisoformat(_child_text(upload, "Initiated"))
                yield UnfinishedUpload(_child_text(upload, "Key"), _child_text(upload, "UploadId"), initiated)
            if _child_text(listing, "IsTruncated") != "true":
                return
            marker = {
                "key-marker": _child_text(listing, "NextKeyMarker"),
                "upload-id-marker": _child_text(listing, "NextUploadIdMarker"),
            }

    def uploaded_bytes(self, upload: UnfinishedUpload) -> int | None:
        """Return the size of an unfinished upload: 0 if not reported, None if it has ended."""
        total, marker = 0, "0"
        while True:
            try:
                listing = self._xml(upload.key, {"uploadId": upload.upload_id, "part-number-marker": marker})
            except RequestRejected as error:
                if error.is_gone:
                    return None
                if error.is_unsupported:
                    return 0
                raise
            total += sum(int(_child_text(part, "Size")) for part in listing.iterfind("{*}Part"))
            if _child_text(listing, "IsTruncated") != "true":
                return total
            marker = _child_text(listing, "NextPartNumberMarker")

    def abort(self, upload: UnfinishedUpload) -> None:
        """Remove an unfinished upload, unless it has ended."""
        try:
            self.send("DELETE", upload.key, {"uploadId": upload.upload_id})
        except RequestRejected as error:
            if not error.is_gone:
                raise

    def checksum(self, key: str) -> str | None:
        """Return the SHA-256 that the service keeps; of an upload in parts, the composite one."""
        headers, _ = self.send("HEAD", key, {}, {"x-amz-checksum-mode": "ENABLED"})
        return headers.get("x-amz-checksum-sha256")

    def _xml(self, key: str, query: Mapping[str, str]) -> ElementTree.Element:
        _, body = self.send("GET", key, query)
        try:
            return ElementTree.fromstring(body)  # noqa: S314 - expat rejects entity bombs
        except ElementTree.ParseError as error:
            raise StoreTrouble(
                f"the archive store {self.bucket_url} did not answer in XML: {error}"
            ) from error

    def send(
        self, method: str, key: str, query: Mapping[str, str], headers: Mapping[str, str] | None = None
    ) -> tuple[HTTPMessage, bytes]:
        """Send a request, and retry transient failures as the store library does.

        Return the headers and the body of the response.
        """
        for pause in _PAUSES:
            try:
                return self._send_once(method, key, query, headers or {})
            except RequestRejected:
                raise
            except StoreTrouble:
                time.sleep(pause)
        return self._send_once(method, key, query, headers or {})

    def _send_once(
        self, method: str, key: str, query: Mapping[str, str], headers: Mapping[str, str]
    ) -> tuple[HTTPMessage, bytes]:
        url = f"{self.bucket_url}/{quote(key)}" if key else self.bucket_url
        url = f"{url}?{encoded_query(query)}" if query else url
        sent = signed_headers(method, url, headers, self.credentials, self.region, datetime.now(UTC))
        request = urllib.request.Request(url, headers=sent, method=method)  # noqa: S310 - scheme checked by open_object_store
        try:
            response: HTTPResponse
            with urllib.request.urlopen(request, timeout=self.seconds) as response:  # noqa: S310
                return response.headers, response.read(_MAX_RESPONSE)
        except HTTPError as error:
            message = f"the archive store {self.bucket_url} failed: it answered {error.code} {error.reason}"
            if error.code >= 500 and error.code != 501:
                raise StoreTrouble(message) from error
            raise RequestRejected(error.code, message) from error
        except (OSError, HTTPException) as error:
            raise StoreTrouble(f"the archive store {self.bucket_url} failed: {_cause(error)}") from error


def _bucket_url(bucket: str, region: str) -> str:
    virtual = os.environ.get("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "").lower() in ("1", "true", "yes", "on")
    if endpoint():
        return endpoint() if virtual else f"{endpoint()}/{bucket}"
    return (
        f"https://{bucket}.s3.{region}.amazonaws.com"
        if virtual
        else f"https://s3.{region}.amazonaws.com/{bucket}"
    )


def _cause(error: Exception) -> str:
    """Return the cause of a failure, in the words of store_error_message."""
    reason = getattr(error, "reason", error)
    if isinstance(reason, TimeoutError):
        return "it did not answer in time"
    return f"the connection to it broke ({reason})"


def _child_text(element: ElementTree.Element, name: str) -> str:
    return element.findtext(f"{{*}}{name}") or ""
