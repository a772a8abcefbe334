"""Cookies: which are the platform's, and which a workspace may receive or set."""

import pytest

from codehub.gateway.config import Origins
from codehub.gateway.cookies import (
    CookieGrant,
    cookie_values,
    may_set,
    sign,
    verify,
    without_platform_cookies,
)

KEY, HASH, ID, HOST = (
    b"k" * 32,
    b"h" * 32,
    "01hzy0000000000000000000aa",
    "01hzy0000000000000000000aa.localhost:8080",
)


def test_a_workspace_cookie_proves_its_session() -> None:
    value = sign(KEY, CookieGrant(HASH, 2000), ID, HOST).encode()
    assert verify(KEY, value, ID, HOST, 1999) == CookieGrant(HASH, 2000)


def test_a_workspace_cookie_holds_only_for_its_key_workspace_host_and_time() -> None:
    value = sign(KEY, CookieGrant(HASH, 2000), ID, HOST).encode()
    other = ID[:-1] + "b"
    assert verify(b"x" * 32, value, ID, HOST, 0) is None
    assert verify(KEY, value, other, HOST, 0) is None
    assert verify(KEY, value, ID, HOST.replace(ID, other), 0) is None
    assert verify(KEY, value, ID, HOST, 2000) is None
    for position in range(0, len(value), 7):
        changed = (
            value[:position]
            + (b"A" if value[position : position + 1] != b"A" else b"B")
            + value[position + 1 :]
        )
        assert verify(KEY, changed, ID, HOST, 0) is None


@pytest.mark.parametrize("value", [b"", b"x", b"!" * 96, b"A" * 95, b"A" * 96, b"A" * 100, b"\xff" * 96])
def test_invalid_workspace_cookies_are_rejected(value: bytes) -> None:
    assert verify(KEY, value, ID, HOST, 0) is None


@pytest.mark.parametrize(
    ("header", "left"),
    [
        (b"session=s", b""),
        (b"a=1; session=s; b=2", b"a=1; b=2"),
        (b"a=1;session=s;__Host-session=t;codehub-workspace=u;__Host-codehub-workspace=v", b"a=1"),
        (b"codehub-entry-0123abcd=n; a=1; __Host-codehub-entry-0123abcd=n", b"a=1"),
        (b" session =s; SESSION=t; __HOST-Session=u", b""),
        (b'a="x; session=s; y"', b'a="x; y"'),
        (b"sessions=1; mysession=2; a=session=3", b"sessions=1; mysession=2; a=session=3"),
        (b"session", b""),
        (b";;a=1; ;", b"a=1"),
    ],
)
def test_platform_cookies_are_removed_and_others_stay(header: bytes, left: bytes) -> None:
    assert without_platform_cookies(header) == left


@pytest.mark.parametrize(
    ("cookie", "allowed"),
    [
        (b" theme=dark; Path=/", True),
        (b" session=x", False),
        (b" Session =x", False),
        (b" __host-session=x; Secure; Path=/", False),
        (b" codehub-workspace=x", False),
        (b" a=1; Domain=example.com", False),
        (b" a=1; DOMAIN = .example.com", False),
        (b" a=1; path=/; domain", False),
        (b" =session=x", False),
        (b" session", False),
        (b"", False),
        (b" a=domain=x", True),
    ],
)
def test_which_cookies_a_workspace_may_set(cookie: bytes, allowed: bool) -> None:
    assert may_set(cookie) is allowed


def test_all_values_of_a_cookie_name_are_returned() -> None:
    assert cookie_values(b"a=1; b=2; a=3", b"a") == [b"1", b"3"]
    assert cookie_values(b"ab=1", b"a") == []


def test_origins() -> None:
    local = Origins("http://localhost:8080", "localhost:8080")
    assert local.workspace_of(HOST) == ID
    assert local.workspace_origin(ID) == f"http://{HOST}"
    assert local.workspace_of("localhost:8080") is None
    assert local.workspace_of("x." + HOST) is None
    assert local.workspace_of(HOST.replace("01", "0u", 1)) is None
    assert local.aliases == {"127.0.0.1:8080", "[::1]:8080"}
    assert (local.session_cookie, local.workspace_cookie) == (b"session", b"codehub-workspace")

    public = Origins("https://hub.example.com", "Apps.Example.com")
    assert public.workspace_origin(ID) == f"https://{ID}.apps.example.com"
    assert public.normal("hub.example.com:443") == public.platform_host
    assert public.aliases == frozenset()
    assert (public.session_cookie, public.workspace_cookie) == (
        b"__Host-session",
        b"__Host-codehub-workspace",
    )

    ported = Origins("https://hub.example.com:8443", "apps.example.com")
    assert ported.workspace_host(ID) == f"{ID}.apps.example.com:8443"
    assert Origins("http://x:1", "").workspace_of(f"{ID}.") is None
