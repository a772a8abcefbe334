"""Domains for which two hosts may both set cookies."""

import pytest

from codehub.domain.cookie_domains import parent_domains, shared_domain


def test_cookies_may_be_set_for_a_host_and_its_parents() -> None:
    assert parent_domains("a.b.example.org") == ["a.b.example.org", "b.example.org", "example.org"]
    assert parent_domains("localhost") == parent_domains("10.0.0.1") == parent_domains("::1") == []


@pytest.mark.parametrize(
    ("platform", "apps", "expected"),
    [
        ("hub.example.org", "apps.example.org", "example.org"),
        ("hub.example.org", "apps.hub.example.org", "hub.example.org"),
        ("apps.example.org", "example.org", "example.org"),
        ("hub.example.org", "example-apps.org", None),
        ("hub.example.co.kr", "apps.other.co.kr", None),
        ("hub.example.co.kr", "apps.example.co.kr", "example.co.kr"),
        ("hub.local", "apps.local", None),
    ],
)
def test_the_domain_that_two_hosts_share(platform: str, apps: str, expected: str | None) -> None:
    assert shared_domain(platform, apps) == expected
