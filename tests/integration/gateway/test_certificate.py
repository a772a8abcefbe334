"""Checks of a certificate before it is served."""

from pathlib import Path

import pytest

from codehub.cli.certificate_checks import check_certificate, require_certificate
from codehub.cli.findings import Severity
from codehub.cli.requirements import RequirementError
from codehub.gateway.certificate import CertificateError, CertificateFiles, RenewedCertificate
from codehub.gateway.trusted_proxies import TrustedProxies
from codehub.settings import Settings, SettingsError, load
from tests.integration.gateway.issuing import encrypt_key, issue

NAMES = "DNS:Example.org,DNS:*.apps.example.org,IP:10.1.2.3,IP:fd00::7"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("certificates")


@pytest.fixture(scope="module")
def files(directory: Path) -> CertificateFiles:
    return issue(directory, "good", names=NAMES)


def settings(files: CertificateFiles, **more: object) -> Settings:
    given = {"public_base_url": "https://example.org", "apps_domain": "apps.example.org"} | more
    return load(tls_cert_file=files.chain, tls_key_file=files.key, **given)


def test_the_error_about_an_unusable_certificate_names_its_cause(
    files: CertificateFiles, directory: Path
) -> None:
    junk, gone = directory / "junk", directory / "gone"
    junk.write_bytes(b"\xffjunk")
    other, expired = issue(directory, "other", names=NAMES), issue(directory, "expired", names=NAMES, days=-1)
    wrong_use = issue(directory, "wrong use", "extendedKeyUsage=clientAuth", names=NAMES)
    for given, message in (
        (CertificateFiles(gone, files.key), "gone cannot be read (No such file"),
        (CertificateFiles(files.chain, gone), "gone cannot be read (No such file"),
        (CertificateFiles(directory, files.key), "cannot be read (Is a directory)"),
        (CertificateFiles(junk, files.key), "holds no certificate"),
        (CertificateFiles(files.chain, junk), "holds no private key"),
        (CertificateFiles(files.key, files.key), "holds no certificate"),
        (CertificateFiles(files.chain, other.key), "is not the key of"),
        (CertificateFiles(files.chain, encrypt_key(files, directory / "locked")), "needs a passphrase"),
        (expired, "has expired"),
        (wrong_use, "is not one for a server"),
    ):
        with pytest.raises(CertificateError) as error:
            RenewedCertificate(given)
        assert message in str(error.value)
        with pytest.raises(RequirementError):
            require_certificate(settings(given))
        (finding,) = check_certificate(settings(given))
        assert finding.severity is Severity.FAIL and message in finding.message


def test_a_certificate_covers_its_names_and_one_level_of_a_wildcard(
    files: CertificateFiles, directory: Path
) -> None:
    narrow = issue(directory, "narrow", names="DNS:*.localhost").examine()
    assert not narrow.covers("a.localhost") and not narrow.covers("*.localhost")
    found = files.examine()
    for host in ("example.org", "EXAMPLE.org", "a.apps.example.org", "*.apps.example.org"):
        assert found.covers(host), host
    for host in ("10.1.2.3", "[fd00::7]"):
        assert found.covers(host), host
    for host in ("a.example.org", "apps.example.org", "a.b.apps.example.org", "10.1.2.4", "org", "localhost"):
        assert not found.covers(host), host


def test_the_doctor_checks_names_and_expiry(files: CertificateFiles, directory: Path) -> None:
    require_certificate(settings(files))
    assert [finding.severity for finding in check_certificate(settings(files))] == [Severity.OK, Severity.OK]
    elsewhere = settings(files, apps_domain="other.example.org:8443")
    names, _ = check_certificate(elsewhere)
    assert names.severity is Severity.WARN and "does not cover *.other.example.org:" in names.message
    assert check_certificate(settings(files, apps_domain=""))[0].severity is Severity.OK
    _, age = check_certificate(settings(issue(directory, "old", names=NAMES, days=13)))
    assert age.severity is Severity.WARN and "renew" in age.advice
    assert check_certificate(Settings()) == []


def test_certificate_and_key_are_set_together_and_need_https(files: CertificateFiles) -> None:
    for given in ({"tls_cert_file": files.chain}, {"tls_key_file": files.key, "tls_cert_file": ""}):
        with pytest.raises(SettingsError, match="set both, or none"):
            load(**given)
    with pytest.raises(SettingsError, match="the port speaks https"):
        settings(files, public_base_url="http://example.org")
    assert load(tls_cert_file=files.chain, tls_key_file=files.key).base_url == "https://localhost:8080"
    assert load(tls_cert_file="", tls_key_file="").base_url == "http://localhost:8080"


def test_trusted_proxies_are_addresses_and_networks() -> None:
    proxies = TrustedProxies(load(trusted_proxies=" 10.0.0.1, FD00:0::7, 192.168.0.0/16, fe00::/8 ").proxies)
    for peer in ("10.0.0.1", "fd00::7", "192.168.3.4", "fe00:1::2"):
        assert peer in proxies
    for peer in ("10.0.0.2", "fd00::8", "192.169.0.1", "", "unix"):
        assert peer not in proxies
    with pytest.raises(SettingsError, match="TRUSTED_PROXIES: must be addresses or networks"):
        load(trusted_proxies="proxy.example.org")
