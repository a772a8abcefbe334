"""The platform's tokens do not reach a workspace, wherever they are in a request."""

import base64
import secrets
import string

import pytest

from codehub.domain.token_format import TOKEN_LENGTH, TOKEN_PREFIX
from codehub.gateway.http1.head_rewrite import Forwarding, request_for_workspace
from codehub.gateway.http1.request_head import parse_head
from codehub.gateway.platform_tokens import holds_token, target_holds_token

HERE = Forwarding(b"192.0.2.7", "codehub.example", "https")
ALPHABET = string.ascii_letters + string.digits + "_-"
TOKENS = [TOKEN_PREFIX + "".join(secrets.choice(ALPHABET) for _ in range(TOKEN_LENGTH)) for _ in range(20)]
TOKEN = TOKENS[0]


def seen(*lines: str) -> str:
    text = "\r\n".join(["GET / HTTP/1.1", "Host: codehub.example", *lines, "", ""])
    head = parse_head(text.encode("latin-1"))
    return request_for_workspace(head, b"/", HERE, strip_extensions=False).decode("latin-1")


def encoded(text: str) -> list[str]:
    return [base64.b64encode(text.encode()).decode(), base64.urlsafe_b64encode(text.encode()).decode()]


@pytest.mark.parametrize("before", ["", "u", "us", "usr", "user:", "user@example.org:", "x-token:"])
@pytest.mark.parametrize("after", ["", ":", ":x-oauth-basic"])
def test_a_token_is_found_in_base64_at_every_offset(before: str, after: str) -> None:
    for value in (form for token in TOKENS for form in encoded(f"{before}{token}{after}")):
        assert holds_token(value.encode()), value
        assert holds_token(value.rstrip("=").encode())


@pytest.mark.parametrize(
    "name", ["Authorization", "X-Api-Key", "X-Auth-Token", "Private-Token", "Referer", "X-Any"]
)
@pytest.mark.parametrize(
    "form", ["{}", "Bearer {}", "Token token={}", "https://codehub.example/?token={}", "a, {}, b"]
)
def test_a_field_with_a_token_is_removed(name: str, form: str) -> None:
    wire = seen(f"{name}: {form.format(TOKEN)}", "X-Other: 1")
    assert TOKEN not in wire and f"\r\n{name.lower()}:" not in wire
    assert "\r\nx-other: 1\r\n" in wire


@pytest.mark.parametrize("pair", ["{token}:", "{token}:x", "user:{token}", ":{token}"])
def test_a_token_in_basic_credentials_is_removed(pair: str) -> None:
    for value in encoded(pair.format(token=TOKEN)):
        assert "authorization" not in seen(f"Authorization: Basic {value}")


def test_only_the_cookies_with_a_token_are_removed() -> None:
    wire = seen(f"Cookie: a=1; t={TOKEN}; b=2", f"Cookie: {encoded(TOKEN)[0]}; c=3")
    assert "\r\ncookie: a=1; b=2; c=3\r\n" in wire
    assert "cookie" not in seen(f"Cookie: t={TOKEN}")


def test_only_the_subprotocols_with_a_token_are_removed() -> None:
    """Pages cannot send other fields with a WebSocket, so some send their token in this one."""
    kubernetes = f"base64url.bearer.authorization.k8s.io.{encoded(TOKEN)[1].rstrip('=')}"
    wire = seen(f"Sec-WebSocket-Protocol: chat, {TOKEN}, v2", f"Sec-WebSocket-Protocol: {kubernetes}")
    assert "\r\nsec-websocket-protocol: chat, v2\r\n" in wire
    assert "sec-websocket-protocol" not in seen(f"Sec-WebSocket-Protocol: {TOKEN}")


def test_every_line_of_a_field_is_searched() -> None:
    wire = seen("X-Api-Key: mine", f"X-Api-Key: {TOKEN}", "X-Api-Key: also mine")
    assert TOKEN not in wire and wire.count("x-api-key: ") == 2


@pytest.mark.parametrize(
    "line",
    [
        "Authorization: Bearer ghp_0123456789012345678901234567890123456789",
        "Authorization: Basic dXNlcjpwdw==",
        "X-Api-Key: chubby_0123456789012345678901234567890123456789",
        "Referer: https://codehub.example/chub_notes.md",
        "Cookie: chub_theme=dark",
        f"X-Long: {'Ab0+/' * 400}",
    ],
)
def test_what_only_resembles_a_token_passes(line: str) -> None:
    name, _, value = line.partition(": ")
    assert f"\r\n{name.lower()}: {value}\r\n" in seen(line)


@pytest.mark.parametrize(
    "target", ["/?token={}", "/{}/x", "/a?b=c&t=x{}y", "/#{}", "/?t={}".replace("{}", "%63hub%5F{}")]
)
def test_a_token_in_a_target_is_found(target: str) -> None:
    given = TOKEN.removeprefix(TOKEN_PREFIX) if "%63" in target else TOKEN
    assert target_holds_token(target.format(given).encode())


@pytest.mark.parametrize("target", ["/", "/chub_notes.md", "/?q=chub_" + "a" * 39, "/%63hub_", "/%"])
def test_a_target_without_a_token_passes(target: str) -> None:
    assert not target_holds_token(target.encode())
