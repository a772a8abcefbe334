"""Loopback hosts."""

import pytest

from codehub.domain.loopback import is_loopback


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "::1", "hub.localhost"])
def test_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["localhost.example.org", "127.0.0.2", "notlocalhost", "10.0.0.1"])
def test_not_loopback(host: str) -> None:
    assert not is_loopback(host)
