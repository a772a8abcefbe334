"""Checks of the TLS certificate: it can be served, covers CodeHub's addresses, and has not expired."""

from datetime import datetime, timedelta
from typing import Final
from urllib.parse import urlsplit

from codehub.cli.findings import Finding, fail, ok, warn
from codehub.cli.requirements import RequirementError
from codehub.clock import utc_now
from codehub.gateway.certificate import Certificate, CertificateError, CertificateFiles
from codehub.settings import Settings

WARN_BEFORE: Final = timedelta(days=14)


def configured_certificate(settings: Settings) -> CertificateFiles | None:
    """Return the configured certificate and key, or None if there are none."""
    if settings.tls_cert_file is None or settings.tls_key_file is None:
        return None
    return CertificateFiles(settings.tls_cert_file, settings.tls_key_file)


def require_certificate(settings: Settings) -> None:
    """Raise RequirementError if a certificate is configured and cannot be served."""
    if (given := configured_certificate(settings)) is None:
        return
    try:
        given.examine()
    except CertificateError as error:
        raise RequirementError(
            str(error), "correct TLS_CERT_FILE and TLS_KEY_FILE, or leave both out"
        ) from error


def check_certificate(settings: Settings) -> list[Finding]:
    if (given := configured_certificate(settings)) is None:
        return []
    try:
        found = given.examine()
    except CertificateError as error:
        return [fail("certificate", str(error), "renew it, or correct TLS_CERT_FILE and TLS_KEY_FILE")]
    return [_check_names(settings, found), _check_expiry(found, utc_now())]


def _check_names(settings: Settings, found: Certificate) -> Finding:
    needed = [settings.public_host]
    if apps := urlsplit(f"//{settings.apps_host}").hostname:
        needed.append(f"*.{apps}")
    if missing := [name for name in needed if not found.covers(name)]:
        message = f"does not cover {' and '.join(missing)}: browsers will reject it there"
        if apps == "localhost":
            advice = "no certificate can: set APPS_DOMAIN to your own domain that resolves here, or to empty"
            return warn("certificate", message, advice)
        return warn("certificate", message, f"have it issued for {' and '.join(needed)}")
    return ok("certificate", f"covers {' and '.join(needed)}")


def _check_expiry(found: Certificate, now: datetime) -> Finding:
    message = f"expires {found.not_after:%Y-%m-%d %H:%M} UTC"
    if found.not_after - now < WARN_BEFORE:
        return warn("certificate", message, "renew it; the gateway loads new files without a restart")
    return ok("certificate", message)
