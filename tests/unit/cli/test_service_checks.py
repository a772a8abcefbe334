"""Report of `codehub doctor` about the public addresses of CodeHub."""

import pytest

from codehub import settings
from codehub.cli.findings import Finding, Severity
from codehub.cli.service_checks import check_exposure
from codehub.domain.weak_settings import Weakness


def found(subject: str, **given: object) -> Finding | None:
    findings = check_exposure(settings.load(**given))
    return next((finding for finding in findings if finding.subject == subject), None)


def test_plain_http_on_a_public_name_is_reported_with_what_it_costs() -> None:
    finding = found(
        "https", public_base_url="http://hub.example.org", apps_domain="a.net", allow_insecure_http=True
    )
    assert finding is not None and finding.severity is Severity.WARN
    assert "passwords" in finding.message and "cookies" in finding.message
    assert "TLS_CERT_FILE" in finding.advice


def test_https_needs_no_warning() -> None:
    assert found("https", public_base_url="https://hub.example.org", apps_domain="apps.example.net") is None


@pytest.mark.parametrize("apps", ["apps.example.org", "apps.hub.example.org", "example.org:8443"])
def test_an_apps_domain_that_shares_cookies_with_the_platform_is_reported(apps: str) -> None:
    finding = found("domains", public_base_url="https://hub.example.org", apps_domain=apps)
    assert finding is not None and finding.severity is Severity.WARN
    assert "example.org" in finding.message and "APPS_DOMAIN" in finding.advice


@pytest.mark.parametrize(
    "given",
    [
        {"public_base_url": "https://hub.example.org", "apps_domain": "example-apps.net"},
        {"public_base_url": "https://hub.example.org", "apps_domain": ""},
        {},
    ],
)
def test_domains_that_share_nothing_need_no_warning(given: dict[str, str]) -> None:
    assert found("domains", **given) is None


WIDE = ["0.0.0.0/0", "::/0", "10.0.0.1, 128.0.0.0/1", "2000::/3", "::ffff:0:0/96"]


@pytest.mark.parametrize("networks", WIDE)
def test_proxy_networks_that_contain_clients_get_a_warning(networks: str) -> None:
    finding = found("proxies", trusted_proxies=networks)
    assert finding is not None and finding.severity is Severity.WARN
    assert networks.rpartition(" ")[2] in finding.message and "audit log" in finding.message
    assert Weakness.WIDE_TRUSTED_PROXIES in settings.load(trusted_proxies=networks).weaknesses


@pytest.mark.parametrize(
    "networks", ["", "192.168.0.7", "10.0.0.0/8, fd00::/8, 2001:db8::/32", "::ffff:10.0.0.0/104"]
)
def test_private_proxy_networks_need_no_warning(networks: str) -> None:
    assert found("proxies", trusted_proxies=networks) is None
