"""Cookies that another page planted: a second session, and more cookies than a request may have."""

import pytest

from codehub.gateway.http1.request_head import MAX_COOKIE, MAX_HEAD
from tests.integration.gateway.harness import MINE, NAVIGATE, SESSION, World, headers, status, world

FETCH = "Sec-Fetch-Site: same-origin\r\nSec-Fetch-Mode: cors\r\nSec-Fetch-Dest: empty\r\n"
PUBLIC = {"public": "hub.example.org", "apps_domain": "apps.example.org"}


def platform_request(made: World, cookie: str, target: str = "/", more: str = NAVIGATE) -> str:
    return f"GET {target} HTTP/1.1\r\nHost: {made.platform}\r\n{more}Cookie: {cookie}\r\n\r\n"


def cleared(head: str, name: str) -> set[str]:
    """Return the attributes of each expired cookie of this name in the response."""
    lines = [line.partition(";") for line in headers(head, "set-cookie")]
    return {
        rest.strip().removeprefix("Max-Age=0; ") for pair, _, rest in lines if pair.partition("=")[0] == name
    }


# Two session cookies


@pytest.mark.parametrize("target", ["/", f"/w/{MINE}/", "/api/v1/session", "/api/v1/events"])
@pytest.mark.parametrize(
    "cookie", [f"session={SESSION}; session=planted", f"session=planted; a=1; session={SESSION}"]
)
async def test_a_request_with_two_sessions_is_refused(origin_mode: World, target: str, cookie: str) -> None:
    head, body = await origin_mode.ask(platform_request(origin_mode, cookie, target))
    assert status(head) == 400 and b"two session cookies" in body and b"<h1>" in body
    head, body = await origin_mode.ask(platform_request(origin_mode, cookie, target, FETCH))
    assert status(head) == 400 and b'"BAD_REQUEST"' in body
    assert "Path=/" in cleared(head, "session")
    assert not origin_mode.api.heads and not origin_mode.ide.heads


async def test_session_cookies_in_two_header_lines_are_refused(origin_mode: World) -> None:
    request = platform_request(origin_mode, f"session={SESSION}").replace(
        "\r\n\r\n", "\r\nCookie: session=planted\r\n\r\n"
    )
    assert status((await origin_mode.ask(request))[0]) == 400


async def test_in_path_mode_two_sessions_are_refused_below_a_workspaces_path_too(path_mode: World) -> None:
    head, _ = await path_mode.ask(
        platform_request(path_mode, f"session=planted; session={SESSION}", f"/w/{MINE}/x", FETCH)
    )
    assert status(head) == 400 and not path_mode.ide.heads


async def test_both_sessions_are_cleared_for_every_domain_and_path() -> None:
    """A cookie may belong to the host or a parent domain, and to any prefix of the path."""
    async with world(**PUBLIC) as made:
        head, body = await made.ask(platform_request(made, "session=a; session=b", "/w/x/?q"))
        domains = {"", "; Domain=hub.example.org", "; Domain=example.org"}
        paths = {"/", "/w", "/w/", "/w/x", "/w/x/"}
        assert cleared(head, "session") == {f"Path={path}{domain}" for path in paths for domain in domains}
        assert b"/login" in body, "the page links to the login"


async def test_one_session_beside_cookies_of_similar_names_passes(origin_mode: World) -> None:
    head, _ = await origin_mode.ask(
        platform_request(origin_mode, f"my-session=1; session={SESSION}; sessions=2; a=session=3")
    )
    assert status(head) == 200


async def test_session_cookies_are_ignored_on_a_workspaces_origin(origin_mode: World) -> None:
    request = origin_mode.request().replace("Cookie: ", "Cookie: session=a; session=b; ")
    assert status((await origin_mode.ask(request))[0]) == 200


# Too many cookies


def many_cookies(size: int, name: str = "bomb") -> str:
    return "; ".join(f"{name}{number}={'x' * 1000}" for number in range(size // 1010 + 1))


@pytest.mark.parametrize("size", [MAX_COOKIE, MAX_HEAD, 3 * MAX_HEAD], ids=["cookie", "head", "far more"])
async def test_too_many_cookies_get_a_page_that_clears_them(size: int) -> None:
    async with world(**PUBLIC) as made:
        for host in (made.platform, made.host):
            request = platform_request(made, many_cookies(size), "/a/b").replace(made.platform, host)
            head, body = await made.ask(request)
            assert status(head) == 431 and b"<h1>" in body and b"cookies" in body
            assert {"Path=/", "Path=/; Domain=example.org"} <= cleared(head, "bomb0")
            assert headers(head, "clear-site-data") == []
        assert not made.api.heads and not made.ide.heads


async def test_over_https_clear_site_data_removes_all_cookies() -> None:
    async with world(scheme="https", **PUBLIC) as made:
        head, _ = await made.ask(platform_request(made, many_cookies(2 * MAX_HEAD)))
        assert headers(head, "clear-site-data") == ['"cookies"']
        assert "Path=/; Domain=example.org; Secure" in cleared(head, "bomb0")


async def test_a_script_gets_a_json_error_and_the_cookies_are_cleared_too(origin_mode: World) -> None:
    for size in (MAX_COOKIE, MAX_HEAD):
        head, body = await origin_mode.ask(platform_request(origin_mode, many_cookies(size), more=FETCH))
        assert status(head) == 431 and b"cookies" in body and body.startswith(b"{")
        assert cleared(head, "bomb0")


async def test_a_few_responses_clear_any_number_of_cookies(origin_mode: World) -> None:
    """A browser that applies each response gets a 200 after a few requests."""
    jar = dict(part.partition("=")[::2] for part in many_cookies(4 * MAX_HEAD).split("; "))
    for _ in range(10):
        cookie = "; ".join(f"{name}={value}" for name, value in jar.items())
        head, _ = await origin_mode.ask(platform_request(origin_mode, cookie or "none=1"))
        if status(head) == 200:
            return
        for name in list(jar):
            if cleared(head, name):
                del jar[name]
    raise AssertionError("still too many cookies")


async def test_the_response_is_small_enough_for_a_browser(origin_mode: World) -> None:
    """Names of 4 KB each, on a long path."""
    cookie = "; ".join(f"{'n' * 4000}{number}=" for number in range(15))
    head, _ = await origin_mode.ask(platform_request(origin_mode, cookie, "/a" * 300))
    assert status(head) == 431 and len(head) < 64 << 10
    assert cleared(head, "n" * 4000 + "0")


@pytest.mark.parametrize(
    "cookie", ["bare" * 4000, "=" + "x" * 16000, 'a"b=' + "x" * 16000, "\xff\xfe=" + "x" * 16000]
)
async def test_cookies_with_unusual_names_are_cleared_too(origin_mode: World, cookie: str) -> None:
    request = platform_request(origin_mode, cookie).encode("latin-1")
    head, _ = await origin_mode.ask(request)
    assert status(head) == 431
    name = cookie.partition("=")[0] if "=" in cookie else ""
    assert cleared(head, name)


async def test_a_large_head_without_cookies_is_a_400(origin_mode: World) -> None:
    request = f"GET / HTTP/1.1\r\nHost: {origin_mode.platform}\r\nX-Long: {'x' * MAX_HEAD}\r\n{NAVIGATE}\r\n"
    head, body = await origin_mode.ask(request)
    assert status(head) == 400 and b"too large" in body and not headers(head, "set-cookie")


@pytest.mark.parametrize(
    "start", ["GET / HTTP/1.1\r\n", "G\x00T / HTTP/1.1\r\nHost: a\r\n", "\r\n", "POST x\r\n"]
)
async def test_a_large_head_that_is_not_a_request_is_a_400(origin_mode: World, start: str) -> None:
    head, _ = await origin_mode.ask(f"{start}Cookie: {many_cookies(MAX_HEAD)}\r\n\r\n")
    assert status(head) == 400 and not headers(head, "set-cookie")


async def test_cookies_just_below_the_limit_are_accepted(origin_mode: World) -> None:
    request = origin_mode.request().replace("Cookie: ", f"Cookie: {many_cookies(MAX_COOKIE - 3000)}; ")
    assert status((await origin_mode.ask(request))[0]) == 200
