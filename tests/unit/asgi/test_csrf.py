"""The rule for cross-site calls, as a table."""

import pytest

from codehub.asgi.csrf import is_cross_site, origin_of

OWN = "https://codehub.example.com"


@pytest.mark.parametrize(
    ("fetch_site", "origin", "foreign"),
    [
        (None, None, False),
        ("same-origin", None, False),
        ("none", None, False),
        ("same-site", None, True),
        ("cross-site", None, True),
        ("", None, True),
        ("Same-Origin", None, True),
        (None, OWN, False),
        (None, OWN + ":443", False),
        (None, "https://CODEHUB.example.com", False),
        (None, "http://codehub.example.com", True),
        (None, "https://codehub.example.com:8443", True),
        (None, "https://abc.codehub.example.com", True),
        (None, "https://evil.example.com", True),
        (None, "null", True),
        (None, "", True),
        (None, "https://codehub.example.com@evil.example.com", True),
        (None, "https://[", True),
        ("same-origin", OWN, False),
        ("same-origin", "https://evil.example.com", True),
        ("cross-site", OWN, True),
    ],
)
def test_cross_site_detection(fetch_site: str | None, origin: str | None, foreign: bool) -> None:
    sites = [] if fetch_site is None else [fetch_site]
    origins = [] if origin is None else [origin]
    assert is_cross_site(sites, origins, OWN) is foreign


def test_one_cross_site_header_among_several_is_enough() -> None:
    assert is_cross_site(["same-origin", "cross-site"], [], OWN)
    assert is_cross_site([], [OWN, "https://evil.example.com"], OWN)


def test_a_port_that_is_the_default_is_the_same_origin() -> None:
    assert origin_of("http://localhost") == origin_of("http://localhost:80")
