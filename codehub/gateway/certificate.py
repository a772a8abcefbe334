"""The certificate of the TLS port: tested before it is used, and reloaded when its files change."""

import socket
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NoReturn

import structlog

from codehub.gateway.tls_records import RecordLimit

logger = structlog.get_logger(__name__)

_EXPIRED: Final = 10
_NOT_YET_VALID: Final = 9
"""OpenSSL's X509_V_ERR_CERT_HAS_EXPIRED and X509_V_ERR_CERT_NOT_YET_VALID."""


class CertificateError(Exception):
    """Certificate that cannot be served. The message names the file and the cause."""


@dataclass(frozen=True)
class CertificateFiles:
    """PEM files: the certificate with its intermediates, and its key without a passphrase."""

    chain: Path
    key: Path

    def context(self) -> ssl.SSLContext:
        """Return a context to serve with. Raise CertificateError if the two files do not match."""
        _read_file(self.key)
        context = RecordLimit(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION
        context.set_alpn_protocols(["http/1.1"])
        try:
            context.load_cert_chain(self.chain, self.key, password=self._refuse_passphrase)
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                raise CertificateError(f"{self.key} is not the key of {self.chain}") from error
            raise CertificateError(f"{self.key} holds no private key in PEM form") from error
        return context

    def examine(self) -> "Certificate":
        """Test the certificate in a handshake in memory, as strictly as a browser that trusts the issuer."""
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        client.check_hostname = False
        client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        try:
            client.load_verify_locations(cadata=_read_file(self.chain).decode("ascii"))
        except (ssl.SSLError, UnicodeDecodeError) as error:
            raise CertificateError(f"{self.chain} holds no certificate in PEM form") from error
        context = self.context()
        try:
            fields = _handshake(context, client)
        except ssl.SSLCertVerificationError as error:
            raise CertificateError(f"the certificate {self.chain} {_verdict(error)}") from error
        return Certificate(context, _alternative_names(fields), _time(fields["notAfter"]))

    def stamp(self) -> tuple[tuple[int, int, int] | None, ...]:
        """Return a value that changes when one of the files does."""
        return tuple(_stamp(path) for path in (self.chain, self.key))

    def _refuse_passphrase(self) -> NoReturn:
        raise CertificateError(f"{self.key} needs a passphrase, which CodeHub cannot enter")


@dataclass(frozen=True)
class Certificate:
    """A valid certificate, and its content."""

    context: ssl.SSLContext
    names: frozenset[str]
    not_after: datetime

    def covers(self, host: str) -> bool:
        """Return whether the certificate is valid for a host (RFC 6125, 6.4.3).

        A wildcard stands for one label, but not for one right below the top level. For the host
        `*.example.org`, the certificate must have that wildcard.
        """
        host = host.lower().strip("[]")
        parent = host.partition(".")[2]
        if host.startswith("*.") and "." not in parent:
            return False
        return host in self.names or ("." in parent and f"*.{parent}" in self.names)


class RenewedCertificate:
    """Certificate that follows its files. An invalid one does not replace a valid one."""

    def __init__(self, files: CertificateFiles) -> None:
        self._files = files
        self._stamp = files.stamp()
        self.context = files.examine().context

    def refresh(self) -> None:
        stamp = self._files.stamp()
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            renewed = self._files.examine()
        except CertificateError as error:
            logger.warning("the renewed certificate is invalid, the old one stays", why=str(error))
            return
        self.context = renewed.context
        logger.info("the certificate was renewed", not_after=renewed.not_after.isoformat())


def _read_file(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CertificateError(f"{path} cannot be read ({error.strerror})") from error


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _handshake(server: ssl.SSLContext, client: ssl.SSLContext) -> dict[str, Any]:
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client_side = client.wrap_bio(to_client, to_server)
    server_side = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):  # TLS needs no more flights
        for side in (client_side, server_side):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return dict(client_side.getpeercert() or {})


def _alternative_names(fields: dict[str, Any]) -> frozenset[str]:
    """Return the subject's alternative names. The common name does not count (RFC 9110, 4.3.4)."""
    named = fields.get("subjectAltName", ())
    return frozenset(_address(value) if kind == "IP Address" else value.lower() for kind, value in named)


def _address(value: str) -> str:
    """Shorten an IPv6 address, as people write it. OpenSSL writes it in full."""
    if ":" not in value:
        return value
    return socket.inet_ntop(socket.AF_INET6, socket.inet_pton(socket.AF_INET6, value.strip()))


def _time(value: str) -> datetime:
    return datetime.fromtimestamp(ssl.cert_time_to_seconds(value), UTC)


def _verdict(error: ssl.SSLCertVerificationError) -> str:
    if error.verify_code == _EXPIRED:
        return "has expired"
    if error.verify_code == _NOT_YET_VALID:
        return "is not valid yet"
    return f"is not one for a server ({error.verify_message})"
