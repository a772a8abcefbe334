"""Rewriting of request heads (RFC 9110, 7.6.1)."""

import pytest

from codehub.gateway.http1.head_rewrite import Forwarding, request_for_api, request_for_workspace
from codehub.gateway.http1.request_head import parse_head

FORWARDING = Forwarding(b"192.0.2.7", "codehub.example", "https")


def head_with(*lines: str) -> bytes:
    return "\r\n".join(["GET / HTTP/1.1", "Host: codehub.example", *lines, "", ""]).encode()


def sent(*lines: str, workspace: bool = False) -> bytes:
    head = parse_head(head_with(*lines))
    if workspace:
        return request_for_workspace(head, b"/", FORWARDING, strip_extensions=False).lower()
    return request_for_api(head, FORWARDING).lower()


def test_fields_that_connection_names_are_removed() -> None:
    wire = sent("Connection: x-hop, close", "X-Hop: 1", "Keep-Alive: 5", "TE: trailers", "X-End: 2")
    assert b"x-hop" not in wire
    assert b"keep-alive" not in wire
    assert b"\r\nte:" not in wire
    assert b"x-end: 2" in wire


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Sec-Fetch-Site", "cross-site"),
        ("Sec-Fetch-Mode", "cors"),
        ("Origin", "https://elsewhere.example"),
        ("Cookie", "a=b"),
    ],
)
def test_naming_a_protected_field_in_connection_does_not_remove_it(name: str, value: str) -> None:
    assert f"{name}: {value}".lower().encode() in sent(f"Connection: {name}", f"{name}: {value}")


def test_forwarding_fields_of_a_client_are_replaced() -> None:
    wire = sent("X-Forwarded-For: 127.0.0.1", "Forwarded: for=127.0.0.1", "X-Real-IP: 127.0.0.1")
    assert b"127.0.0.1" not in wire
    assert (
        b"x-forwarded-for: 192.0.2.7\r\nx-forwarded-host: codehub.example\r\nx-forwarded-proto: https" in wire
    )


def test_an_internal_key_from_a_client_is_removed() -> None:
    theirs = ("X-CodeHub-Internal-Key: theirs", "x_codehub_internal-key: theirs")
    for wire in (sent(*theirs), sent(*theirs, workspace=True)):
        assert b"theirs" not in wire
    ours = request_for_api(parse_head(head_with(*theirs)), FORWARDING, b"ours")
    assert ours.endswith(b"\r\nx-codehub-internal-key: ours\r\n\r\n")
    assert ours.count(b"\r\n\r\n") == 1


@pytest.mark.parametrize("scheme", ["Bearer ", "bearer ", "Token ", ""])
def test_the_platforms_credentials_never_reach_a_workspace(scheme: str) -> None:
    wire = sent(
        f"Authorization: {scheme}chub_secret",
        "Cookie: session=s1; own=1; codehub-workspace=w; __Host-session=s2",
        workspace=True,
    )
    assert b"chub_" not in wire
    assert b"cookie: own=1\r\n" in wire
    assert b"authorization: basic abc" in sent("Authorization: Basic abc", workspace=True)
