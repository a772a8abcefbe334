"""Cookies that another page planted: two sessions, and more than fit into a request."""

import pytest

from codehub.gateway.http1.request_head import MAX_COOKIE, MAX_HEAD
from tests.integration.gateway.harness import MINE, NAVIGATE, SESSION, World, headers, status, world

FETCH = "Sec-Fetch-Site: same-origin\r\nSec-Fetch-Mode: cors\r\nSec-Fetch-Dest: empty\r\n"
PUBLIC = {"public": "hub.example.org", "apps_domain": "apps.example.org"}


def ask_platform(made: World, cookie: str, target: str = "/", more: str = NAVIGATE) -> str:
    return f"GET {target} HTTP/1.1\r\nHost: {made.platform}\r\n{more}Cookie: {cookie}\r\n\r\n"


def cleared(head: str, name: str) -> set[str]:
    """The attributes with which the answer expires the cookie of this name."""
    lines = [line.partition(";") for line in headers(head, "set-cookie")]
    return {
        rest.strip().removeprefix("Max-Age=0; ") for pair, _, rest in lines if pair.partition("=")[0] == name
    }


# Two sessions


@pytest.mark.parametrize("target", ["/", f"/w/{MINE}/", "/api/v1/session", "/api/v1/events"])
@pytest.mark.parametrize(
    "cookie", [f"session={SESSION}; session=planted", f"session=planted; a=1; session={SESSION}"]
)
async def test_a_request_with_two_sessions_is_refused(origin: World, target: str, cookie: str) -> None:
    head, body = await origin.ask(ask_platform(origin, cookie, target))
    assert status(head) == 400 and b"two session cookies" in body and b"<h1>" in body
    head, body = await origin.ask(ask_platform(origin, cookie, target, FETCH))
    assert status(head) == 400 and b'"BAD_REQUEST"' in body
    assert "Path=/" in cleared(head, "session")
    assert not origin.api.heads and not origin.ide.heads


async def test_two_sessions_in_two_lines_are_two(origin: World) -> None:
    asked = ask_platform(origin, f"session={SESSION}").replace(
        "\r\n\r\n", "\r\nCookie: session=planted\r\n\r\n"
    )
    assert status((await origin.ask(asked))[0]) == 400


async def test_in_the_path_mode_a_workspace_is_refused_two_sessions_as_well(path: World) -> None:
    head, _ = await path.ask(ask_platform(path, f"session=planted; session={SESSION}", f"/w/{MINE}/x", FETCH))
    assert status(head) == 400 and not path.ide.heads


async def test_both_sessions_are_cleared_wherever_they_may_have_been_set() -> None:
    """The host and its parents may set a cookie for a request, each with any beginning of its path."""
    async with world(**PUBLIC) as made:
        head, body = await made.ask(ask_platform(made, "session=a; session=b", "/w/x/?q"))
        domains = {"", "; Domain=hub.example.org", "; Domain=example.org"}
        paths = {"/", "/w", "/w/", "/w/x", "/w/x/"}
        assert cleared(head, "session") == {f"Path={path}{domain}" for path in paths for domain in domains}
        assert b"/login" in body, "the page leads to a new session"


async def test_one_session_beside_cookies_of_similar_names_passes(origin: World) -> None:
    head, _ = await origin.ask(
        ask_platform(origin, f"my-session=1; session={SESSION}; sessions=2; a=session=3")
    )
    assert status(head) == 200


async def test_on_a_workspaces_origin_sessions_mean_nothing(origin: World) -> None:
    asked = origin.request().replace("Cookie: ", "Cookie: session=a; session=b; ")
    assert status((await origin.ask(asked))[0]) == 200


# More than fits


def flood(size: int, name: str = "bomb") -> str:
    return "; ".join(f"{name}{number}={'x' * 1000}" for number in range(size // 1010 + 1))


@pytest.mark.parametrize("size", [MAX_COOKIE, MAX_HEAD, 3 * MAX_HEAD], ids=["cookie", "head", "far more"])
async def test_too_many_cookies_get_a_page_that_clears_them(size: int) -> None:
    async with world(**PUBLIC) as made:
        for host in (made.platform, made.host):
            asked = ask_platform(made, flood(size), "/a/b").replace(made.platform, host)
            head, body = await made.ask(asked)
            assert status(head) == 431 and b"<h1>" in body and b"cookies" in body
            assert {"Path=/", "Path=/; Domain=example.org"} <= cleared(head, "bomb0")
            assert headers(head, "clear-site-data") == []
        assert not made.api.heads and not made.ide.heads


async def test_with_https_the_browser_clears_all_of_them_at_once() -> None:
    async with world(scheme="https", **PUBLIC) as made:
        head, _ = await made.ask(ask_platform(made, flood(2 * MAX_HEAD)))
        assert headers(head, "clear-site-data") == ['"cookies"']
        assert "Path=/; Domain=example.org; Secure" in cleared(head, "bomb0")


async def test_a_script_gets_a_sentence_and_the_cookies_are_cleared_as_well(origin: World) -> None:
    for size in (MAX_COOKIE, MAX_HEAD):
        head, body = await origin.ask(ask_platform(origin, flood(size), more=FETCH))
        assert status(head) == 431 and b"cookies" in body and body.startswith(b"{")
        assert cleared(head, "bomb0")


async def test_what_is_cleared_once_is_gone_at_the_next_request(origin: World) -> None:
    """A browser that obeys each answer gets through after a few, however many cookies there are."""
    jar = dict(part.partition("=")[::2] for part in flood(4 * MAX_HEAD).split("; "))
    for _ in range(10):
        cookie = "; ".join(f"{name}={value}" for name, value in jar.items())
        head, _ = await origin.ask(ask_platform(origin, cookie or "none=1"))
        if status(head) == 200:
            return
        for name in list(jar):
            if cleared(head, name):
                del jar[name]
    raise AssertionError("still too many cookies")


async def test_the_answer_stays_small_enough_for_a_browser(origin: World) -> None:
    """Names of 4 KB each, on a long path."""
    cookie = "; ".join(f"{'n' * 4000}{number}=" for number in range(15))
    head, _ = await origin.ask(ask_platform(origin, cookie, "/a" * 300))
    assert status(head) == 431 and len(head) < 64 << 10
    assert cleared(head, "n" * 4000 + "0")


@pytest.mark.parametrize(
    "cookie", ["bare" * 4000, "=" + "x" * 16000, 'a"b=' + "x" * 16000, "\xff\xfe=" + "x" * 16000]
)
async def test_odd_names_are_cleared_too(origin: World, cookie: str) -> None:
    asked = ask_platform(origin, cookie).encode("latin-1")
    head, _ = await origin.ask(asked)
    assert status(head) == 431
    name = cookie.partition("=")[0] if "=" in cookie else ""
    assert cleared(head, name)


async def test_a_large_head_without_cookies_is_refused_as_before(origin: World) -> None:
    asked = f"GET / HTTP/1.1\r\nHost: {origin.platform}\r\nX-Long: {'x' * MAX_HEAD}\r\n{NAVIGATE}\r\n"
    head, body = await origin.ask(asked)
    assert status(head) == 400 and b"too large" in body and not headers(head, "set-cookie")


@pytest.mark.parametrize(
    "start", ["GET / HTTP/1.1\r\n", "G\x00T / HTTP/1.1\r\nHost: a\r\n", "\r\n", "POST x\r\n"]
)
async def test_a_large_head_that_is_no_request_is_refused_as_before(origin: World, start: str) -> None:
    head, _ = await origin.ask(f"{start}Cookie: {flood(MAX_HEAD)}\r\n\r\n")
    assert status(head) == 400 and not headers(head, "set-cookie")


async def test_cookies_that_an_app_may_well_have_pass(origin: World) -> None:
    asked = origin.request().replace("Cookie: ", f"Cookie: {flood(MAX_COOKIE - 3000)}; ")
    assert status((await origin.ask(asked))[0]) == 200
