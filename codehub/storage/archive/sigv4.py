"""AWS Signature Version 4 for requests without a body."""

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from urllib.parse import quote, urlsplit

_ALGORITHM = "AWS4-HMAC-SHA256"
_NO_BODY = hashlib.sha256(b"").hexdigest()


@dataclass(frozen=True)
class AwsCredentials:
    access_key_id: str
    secret_access_key: str = field(repr=False)
    session_token: str | None = field(repr=False, default=None)


def encoded_query(query: Mapping[str, str]) -> str:
    """Return a query string as the signature requires it: sorted, and strictly escaped."""
    return "&".join(f"{quote(name, safe='')}={quote(query[name], safe='')}" for name in sorted(query))


def signed_headers(
    method: str, url: str, headers: Mapping[str, str], credentials: AwsCredentials, region: str, now: datetime
) -> dict[str, str]:
    """Return the headers of a signed request to S3. `url` contains an encoded query."""
    parts = urlsplit(url)
    moment = now.strftime("%Y%m%dT%H%M%SZ")
    sent = {name.lower(): value for name, value in headers.items()}
    sent |= {"host": parts.netloc, "x-amz-content-sha256": _NO_BODY, "x-amz-date": moment}
    if credentials.session_token is not None:
        sent["x-amz-security-token"] = credentials.session_token
    names = ";".join(sorted(sent))
    signed = [f"{name}:{sent[name]}" for name in sorted(sent)]
    lines = [method, parts.path or "/", parts.query, *signed, "", names, _NO_BODY]
    scope = f"{moment[:8]}/{region}/s3/aws4_request"
    request = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    signature = _hmac(_key(credentials, scope), f"{_ALGORITHM}\n{moment}\n{scope}\n{request}").hex()
    fields = f"Credential={credentials.access_key_id}/{scope},SignedHeaders={names},Signature={signature}"
    return sent | {"authorization": f"{_ALGORITHM} {fields}"}


def _key(credentials: AwsCredentials, scope: str) -> bytes:
    key = f"AWS4{credentials.secret_access_key}".encode()
    for part in scope.split("/"):
        key = _hmac(key, part)
    return key


def _hmac(key: bytes, text: str) -> bytes:
    return hmac.digest(key, text.encode(), "sha256")
