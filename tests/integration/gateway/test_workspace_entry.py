"""Entering a workspace: permissions, tickets, cookies and status pages."""

from datetime import UTC, datetime
from ipaddress import ip_network
from urllib.parse import parse_qs, urlsplit

import asyncpg
import pytest
from asyncpg import InternalClientError
from redis.exceptions import OutOfMemoryError
from redis.exceptions import ResponseError as RedisResponseError
from sqlalchemy.exc import DBAPIError

from codehub.database.gateway_queries import StatusPageData
from codehub.database.workspace_queries import RestorableArchive
from codehub.domain.problems import InvalidState, OperationInProgress, RunningLimitExceeded
from codehub.domain.states import DesiredState, ErrorReason, Operation, Phase
from codehub.gateway.trusted_proxies import TrustedProxies
from codehub.rate_limits import TokenBuckets
from tests.integration.gateway.browser import Browser
from tests.integration.gateway.harness import (
    MINE,
    NAVIGATE,
    SESSION,
    THEIRS,
    World,
    header,
    headers,
    make_workspace,
    session_hash,
    status,
    world,
)

FETCH = "Sec-Fetch-Site: same-origin\r\nSec-Fetch-Mode: cors\r\nSec-Fetch-Dest: empty\r\n"


async def test_a_missing_slash_is_added_by_a_permanent_redirect(origin_mode: World) -> None:
    head, _ = await origin_mode.ask(f"GET /w/{MINE}?a=b HTTP/1.1\r\nHost: {origin_mode.platform}\r\n\r\n")
    assert status(head) == 308
    assert header(head, "location") == f"http://{origin_mode.platform}/w/{MINE}/?a=b"


async def test_without_a_session_a_navigation_is_redirected_to_the_login(origin_mode: World) -> None:
    for session in (None, "stolen"):
        head, _ = await origin_mode.ask(origin_mode.entrance("/a?b=c&d", session))
        assert status(head) == 302
        assert header(head, "location") == f"http://{origin_mode.platform}/login?next=/w/{MINE}/a%3Fb%3Dc%26d"
        head, _ = await origin_mode.ask(origin_mode.entrance("/", session, FETCH))
        assert status(head) == 401
    assert not origin_mode.ide.heads


async def test_random_sessions_of_one_network_cost_bounded_look_ups() -> None:
    """Entry, forms of status pages and the event stream share one allowance."""
    async with world(trusted_proxies=TrustedProxies((ip_network("127.0.0.1"),))) as made:
        made.gateway.route_cache._session_lookup_limit._buckets = TokenBuckets(5, 1e-6, "Too many.")

        def guess(number: int, address: str = "192.0.2.66") -> str:
            more = f"X-Forwarded-For: {address}\r\n{FETCH}"
            if number % 3 == 0:
                return made.entrance("/", f"guess-{number}", more)
            cookie = f"Cookie: session=guess-{number}\r\n"
            if number % 3 == 1:
                return f"GET /api/v1/events HTTP/1.1\r\nHost: {made.platform}\r\n{cookie}{more}\r\n"
            form = f"POST /w/{MINE}/.codehub/do?action=start HTTP/1.1\r\nHost: {made.platform}\r\n"
            return f"{form}Content-Length: 0\r\n{cookie}{more}\r\n"

        heads = [(await made.ask(guess(number)))[0] for number in range(20)]
        assert [status(head) for head in heads[5:]] == [429] * 15
        assert all(int(header(head, "retry-after") or 0) > 0 for head in heads[5:])
        assert 429 not in map(status, heads[:5]) and made.facts.lookups == 5
        assert status((await made.ask(guess(0, "192.0.2.7")))[0]) == 401, (
            "another network has its own allowance"
        )


async def test_known_sessions_are_not_limited_with_random_ones(origin_mode: World) -> None:
    assert status((await origin_mode.ask(origin_mode.entrance()))[0]) == 302
    origin_mode.gateway.route_cache._session_lookup_limit._buckets = TokenBuckets(1, 1e-6, "Too many.")
    for expected in (302, 429):
        assert status((await origin_mode.ask(origin_mode.entrance("/", "guess")))[0]) == expected
    origin_mode.gateway.route_cache.forget_all()
    assert "/login" not in (
        header((await origin_mode.ask(origin_mode.entrance()))[0], "location") or "/login"
    )


async def test_only_the_owner_enters(origin_mode: World) -> None:
    for more in (NAVIGATE, FETCH):
        head, _ = await origin_mode.ask(origin_mode.entrance("/", "bob-session", more))
        assert status(head) == 403
        request = origin_mode.entrance("/", SESSION, more).replace(MINE, THEIRS)
        assert status((await origin_mode.ask(request))[0]) == 404


async def test_a_workspace_is_entered_with_a_ticket(origin_mode: World) -> None:
    browser = Browser(origin_mode)
    link = await browser.find_ticket(f"{origin_mode.config.origins.entry_url(MINE)}/folder?x=1%2F2&y")
    location = urlsplit(link)
    assert (location.netloc, location.path) == (origin_mode.host, "/.codehub/enter")
    arrived = await browser.navigate(link)
    assert arrived.location == f"http://{origin_mode.host}/folder?x=1%2F2&y"
    cookie = header(arrived.head, "set-cookie") or ""
    assert cookie.startswith("codehub-workspace=")
    assert {"HttpOnly", "SameSite=Lax", "Path=/"} <= {part.strip() for part in cookie.split(";")}
    assert "omain" not in cookie
    value = cookie.split(";")[0]
    head, body = await origin_mode.ask(
        f"GET /folder HTTP/1.1\r\nHost: {origin_mode.host}\r\nCookie: {value}\r\n{NAVIGATE}\r\n"
    )
    assert (status(head), body) == (200, b"hello")
    again = await browser.navigate(link)  # the ticket has been consumed
    assert header(again.head, "set-cookie") is None
    assert again.location.startswith(f"http://{origin_mode.platform}/w/{MINE}/")


async def test_a_ticket_is_valid_for_one_workspace_only(origin_mode: World) -> None:
    browser = Browser(origin_mode)
    link = await browser.find_ticket(f"{origin_mode.config.origins.entry_url(MINE)}/")
    other = origin_mode.config.origins.workspace_host(THEIRS)
    browser.jar[other] = browser.jar[origin_mode.host]
    answer = await browser.navigate(link.replace(origin_mode.host, other))
    assert header(answer.head, "set-cookie") is None


@pytest.mark.parametrize(
    "to", ["//evil.example/", "https://evil.example/", "/x%0d%0aSet-Cookie:a=b", "%5c%5cevil"]
)
async def test_entering_never_redirects_to_another_host(origin_mode: World, to: str) -> None:
    """Each step reads the path from its query, which anyone may put into a link."""
    browser, entry, own = (
        Browser(origin_mode),
        f"http://{origin_mode.platform}/w/{MINE}/",
        f"http://{origin_mode.host}/",
    )
    begun = await browser.navigate(f"{own}.codehub/begin?to={to}")
    assert begun.location.startswith(f"{entry}.codehub/enter?nonce=")
    nonce = parse_qs(urlsplit(begun.location).query)["nonce"][0]
    issued = await browser.navigate(f"{entry}.codehub/enter?nonce={nonce}&to={to}")
    assert issued.location.startswith(f"{own}.codehub/enter?ticket=")
    ticket = parse_qs(urlsplit(issued.location).query)["ticket"][0]
    arrived = await browser.navigate(f"{own}.codehub/enter?ticket={ticket}&to={to}")
    assert arrived.location.startswith(own)
    assert len(headers(arrived.head, "set-cookie")) == 1
    assert (await browser.navigate(f"{entry}.codehub/enter?to={to}")).location.startswith(entry)


async def test_https_uses_host_prefixed_secure_cookies() -> None:
    async with world(scheme="https") as made:
        assert "/login" in (header((await made.ask(made.entrance()))[0], "location") or "")
        browser = Browser(made)
        link = await browser.find_ticket(f"https://{made.platform}/w/{MINE}/")
        assert link.startswith("https://")
        cookie = header((await browser.navigate(link)).head, "set-cookie") or ""
        assert cookie.startswith("__Host-codehub-workspace=")
        assert "; Secure" in cookie


async def test_without_its_cookie_a_workspace_origin_redirects_navigations_only(origin_mode: World) -> None:
    wrong = origin_mode.cookie(THEIRS, host=origin_mode.config.origins.workspace_host(THEIRS))
    for cookie in ("", f"Cookie: session={SESSION}\r\n", f"Cookie: {wrong}\r\n"):
        head, _ = await origin_mode.ask(
            f"GET /a?b HTTP/1.1\r\nHost: {origin_mode.host}\r\n{cookie}{NAVIGATE}\r\n"
        )
        entry = f"http://{origin_mode.platform}/w/{MINE}/.codehub/enter?"
        assert status(head) == 302 and (header(head, "location") or "").startswith(entry)
        head, _ = await origin_mode.ask(f"GET /a?b HTTP/1.1\r\nHost: {origin_mode.host}\r\n{cookie}\r\n")
        assert status(head) == 401
    assert not origin_mode.ide.heads


async def test_a_cookie_is_valid_only_for_a_live_session_of_the_owner(origin_mode: World) -> None:
    assert status((await origin_mode.ask(origin_mode.request()))[0]) == 200
    del origin_mode.facts.session_users[session_hash(SESSION)]
    origin_mode.gateway.revocation.on_session_ended(session_hash(SESSION))
    assert status((await origin_mode.ask(origin_mode.request()))[0]) == 401
    bobs_cookie = origin_mode.cookie(session="bob-session")
    bob = f"GET / HTTP/1.1\r\nHost: {origin_mode.host}\r\nCookie: {bobs_cookie}\r\n\r\n"
    assert status((await origin_mode.ask(bob))[0]) == 403


async def test_repeated_requests_read_no_database(origin_mode: World) -> None:
    await origin_mode.ask(origin_mode.request())
    lookups = origin_mode.facts.lookups
    for _ in range(10):
        assert status((await origin_mode.ask(origin_mode.request()))[0]) == 200
    assert origin_mode.facts.lookups == lookups == 2


async def test_the_route_cache_is_used_only_while_the_push_channel_answers(origin_mode: World) -> None:
    await origin_mode.ask(origin_mode.request())
    lookups = origin_mode.facts.lookups
    origin_mode.gateway.route_cache._answered_at = -100.0
    origin_mode.gateway.route_cache.channel_answered = lambda: None  # type: ignore[method-assign]
    for _ in range(3):
        assert status((await origin_mode.ask(origin_mode.request()))[0]) == 200
    assert origin_mode.facts.lookups == lookups + 6


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("Sec-Fetch-Site: same-origin\r\nSec-Fetch-Mode: cors\r\n", 200),
        ("Sec-Fetch-Site: same-site\r\nSec-Fetch-Mode: cors\r\n", 403),
        ("Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: no-cors\r\nSec-Fetch-Dest: script\r\n", 403),
        ("Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: iframe\r\n", 403),
        ("Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: document\r\n", 200),
        ("Origin: http://evil.example\r\n", 403),
        ("Origin: null\r\n", 403),
        ("Origin: http://evil.example\r\nAccept: text/html\r\n", 403),
        ("Referer: http://evil.example/page\r\nAccept: image/*\r\n", 403),
        ("Referer: http://evil.example/page\r\nAccept: text/html\r\n", 200),
    ],
)
async def test_foreign_pages_may_navigate_to_a_workspace_and_nothing_else(
    origin_mode: World, more: str, expected: int
) -> None:
    assert status((await origin_mode.ask(origin_mode.request(more=more)))[0]) == expected


async def test_a_foreign_form_is_refused(origin_mode: World) -> None:
    more = NAVIGATE.replace("none", "cross-site") + "Content-Length: 0\r\n"
    assert status((await origin_mode.ask(origin_mode.request("/", "POST", more=more)))[0]) == 403


async def test_an_unknown_host_is_a_421_that_names_the_platforms_url(origin_mode: World) -> None:
    head, body = await origin_mode.ask("GET / HTTP/1.1\r\nHost: evil.example\r\nAccept: text/html\r\n\r\n")
    assert status(head) == 421
    assert f"http://{origin_mode.platform}".encode() in body
    assert status((await origin_mode.ask("GET /healthz HTTP/1.1\r\nHost: 10.0.0.1\r\n\r\n"))[0]) == 200
    alias = f"127.0.0.1:{origin_mode.gateway.port}"
    head, _ = await origin_mode.ask(f"GET /a?b HTTP/1.1\r\nHost: {alias}\r\n{NAVIGATE}\r\n")
    assert header(head, "location") == f"http://{origin_mode.platform}/a?b"
    assert status((await origin_mode.ask(f"GET /api/v1/session HTTP/1.1\r\nHost: {alias}\r\n\r\n"))[0]) == 200


@pytest.mark.parametrize("path", ["/readyz", "/metrics"])
async def test_readiness_and_metrics_are_not_on_the_public_port(origin_mode: World, path: str) -> None:
    """The API returns 404 on the platform's host. A workspace may have paths of these names."""
    for host in ("10.0.0.1", "evil.example", f"evil.example:{origin_mode.gateway.port}"):
        for more in ("", NAVIGATE):
            head, _ = await origin_mode.ask(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n{more}\r\n")
            assert status(head) == 404
    assert not origin_mode.api.heads
    head, body = await origin_mode.ask(origin_mode.request(path))
    assert (status(head), body) == (200, b"hello")


async def test_a_navigation_wakes_a_workspace_and_gets_the_loading_page(origin_mode: World) -> None:
    origin_mode.set_phase(MINE, Phase.STANDBY)
    head, body = await origin_mode.ask(origin_mode.request(more=NAVIGATE))
    assert (status(head), header(head, "location")) == (302, f"http://{origin_mode.platform}/w/{MINE}/")
    assert not origin_mode.facts.woken
    head, body = await origin_mode.ask(origin_mode.entrance())
    assert (status(head), header(head, "cache-control")) == (200, "no-store")
    assert origin_mode.facts.woken == [(MINE, "alice")]
    assert f'"/api/v1/workspaces/{MINE}"'.encode() in body
    assert b"<b>mine" not in body and b"&lt;b&gt;mine" in body
    assert "script-src 'nonce-" in (header(head, "content-security-policy") or "")


@pytest.mark.parametrize(
    "phase", [phase for phase in Phase if phase not in (Phase.RUNNING, Phase.DELETING, Phase.DELETED)]
)
async def test_only_a_navigation_wakes_a_workspace(origin_mode: World, phase: Phase) -> None:
    origin_mode.set_phase(MINE, phase)
    upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\n"
    for request in (
        origin_mode.request(),
        origin_mode.request(more=upgrade),
        origin_mode.entrance(more=FETCH),
    ):
        head, _ = await origin_mode.ask(request)
        assert (status(head), header(head, "retry-after")) == (503, "2")
    assert not origin_mode.facts.woken
    assert not origin_mode.ide.heads


async def test_a_phase_that_needs_a_decision_gets_a_page_with_a_button(origin_mode: World) -> None:
    for phase, button in (
        (Phase.ARCHIVED, b"Restore and open"),
        (Phase.PENDING, b"Start"),
        (Phase.ERROR, b"Recover"),
    ):
        origin_mode.set_phase(MINE, phase, error_message="<script>disk full</script>")
        head, body = await origin_mode.ask(origin_mode.entrance())
        assert status(head) == 502, phase
        assert b">" + button + b"</button>" in body
        assert b"<script>disk" not in body
    assert not origin_mode.facts.woken
    origin_mode.set_phase(MINE, Phase.ARCHIVED)
    _, body = await origin_mode.ask(
        origin_mode.entrance(more=NAVIGATE + "Accept-Language: ko-KR,en;q=0.5\r\n")
    )
    assert 'lang="ko"' in body.decode() and "복원하고 열기" in body.decode()
    korean = origin_mode.entrance().replace("Cookie: ", "Cookie: lang=ko; ")
    assert "복원하고 열기" in (await origin_mode.ask(korean))[1].decode()


async def test_the_page_of_a_lost_home_lists_its_archives(origin_mode: World) -> None:
    lost = make_workspace(MINE, Phase.ERROR, error_reason=ErrorReason.DataLost, error_message="gone")
    origin_mode.set_phase(MINE, Phase.ERROR)
    archive = RestorableArchive("01archive", datetime(2025, 1, 2, 3, 4, tzinfo=UTC), 10, True)
    origin_mode.facts.page_data[MINE] = StatusPageData(lost, [archive])
    _, body = await origin_mode.ask(origin_mode.entrance())
    assert b"2025-01-02 03:04 UTC" in body
    assert b"01archive" in body and b"Start with an empty home" in body


async def test_an_operation_in_progress_gets_the_loading_page_without_a_wake(origin_mode: World) -> None:
    for phase, operation in (
        (Phase.STANDBY, Operation.ARCHIVING),
        (Phase.ARCHIVED, Operation.RESTORING),
        (Phase.RUNNING, Operation.STOPPING),
    ):
        origin_mode.set_phase(MINE, phase, operation)
        head, body = await origin_mode.ask(origin_mode.entrance())
        assert status(head) == 200 and b"<progress" in body
    assert not origin_mode.facts.woken
    assert (
        status((await origin_mode.ask(origin_mode.request()))[0]) == 200
    )  # open pages keep working while it stops
    origin_mode.set_phase(MINE, Phase.ARCHIVED, desired_state=DesiredState.RUNNING)
    assert status((await origin_mode.ask(origin_mode.entrance()))[0]) == 200


async def test_above_the_limit_the_page_offers_workspaces_to_stop(origin_mode: World) -> None:
    origin_mode.set_phase(MINE, Phase.STANDBY)
    origin_mode.facts.wake_error = RunningLimitExceeded("You already run 2 of 2.")
    other = make_workspace(THEIRS, Phase.RUNNING, name="other & more", desired_state=DesiredState.RUNNING)
    origin_mode.facts.counted = [other]
    head, body = await origin_mode.ask(origin_mode.entrance())
    assert status(head) == 502
    assert (
        b"other &amp; more" in body and f"/api/v1/workspaces/{THEIRS}".encode() in body and b">Stop<" in body
    )


async def test_the_limit_page_reloads_while_a_workspace_is_stopping(origin_mode: World) -> None:
    origin_mode.set_phase(MINE, Phase.STANDBY)
    origin_mode.facts.wake_error = RunningLimitExceeded("You already run 1 of 1.")
    origin_mode.facts.counted = [make_workspace(THEIRS, Phase.STANDBY, operation=Operation.STOPPING)]
    _, body = await origin_mode.ask(origin_mode.entrance())
    assert b'"reload": true' in body and b">Stop<" not in body


async def test_a_wake_during_an_operation_loads_and_one_in_error_is_a_502(origin_mode: World) -> None:
    origin_mode.set_phase(MINE, Phase.STANDBY)
    origin_mode.facts.wake_error = OperationInProgress()
    assert status((await origin_mode.ask(origin_mode.entrance()))[0]) == 200
    origin_mode.facts.wake_error = InvalidState("This workspace is in ERROR.")
    assert status((await origin_mode.ask(origin_mode.entrance()))[0]) == 502


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (asyncpg.DiskFullError("could not extend file"), b"CodeHub's database"),
        (DBAPIError("UPDATE", {}, asyncpg.DiskFullError("could not extend file")), b"CodeHub's database"),
        (RedisResponseError("MISCONF Redis is configured to save RDB snapshots"), b"CodeHub's Redis"),
        (OutOfMemoryError("command not allowed when used memory > 'maxmemory'."), b"CodeHub's Redis"),
    ],
    ids=["asyncpg", "sqlalchemy", "snapshot", "memory"],
)
async def test_a_visit_that_cannot_be_saved_gets_a_507_with_its_cause(
    origin_mode: World, error: Exception, cause: bytes
) -> None:
    async def full(_key: object) -> None:
        raise error

    routes = origin_mode.gateway.route_cache._routes
    read, routes._read = routes._read, full
    head, body = await origin_mode.ask(origin_mode.request())
    assert status(head) == 507
    assert b"INSUFFICIENT_STORAGE" in body and cause in body

    routes._read = read
    origin_mode.set_phase(MINE, Phase.STANDBY)
    origin_mode.facts.wake_error = error
    head, body = await origin_mode.ask(origin_mode.entrance())
    assert status(head) == 507
    assert b"no disk space left" in body and b"free space" in body


@pytest.mark.parametrize(
    "error", [OSError("connection refused"), InternalClientError("got result for unknown protocol state 3")]
)
async def test_an_unavailable_database_is_a_503(origin_mode: World, error: Exception) -> None:
    async def unavailable(_key: object) -> None:
        raise error

    origin_mode.gateway.route_cache._routes._read = unavailable
    head, body = await origin_mode.ask(origin_mode.entrance())
    assert status(head) == 503 and b"<h1>" in body
    assert status((await origin_mode.ask(origin_mode.request()))[0]) == 503


async def test_path_mode_serves_a_workspace_below_its_prefix(path_mode: World) -> None:
    cookie = f"Cookie: session={SESSION}; x=1\r\n"
    request = f"GET /w/{MINE}/a/b?c HTTP/1.1\r\nHost: {path_mode.platform}\r\n{cookie}"
    head, body = await path_mode.ask(request + FETCH + "\r\n")
    assert (status(head), body) == (200, b"hello")
    seen = path_mode.ide.heads[0].decode()
    assert seen.startswith("GET /a/b?c HTTP/1.1\r\n")
    assert header(seen, "cookie") == "x=1"
    assert header(seen, "x-forwarded-host") == path_mode.platform
    assert (
        status(
            (await path_mode.ask(request + "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: cors\r\n\r\n"))[0]
        )
        == 403
    )
    assert status((await path_mode.ask(request + "Origin: http://evil\r\n\r\n"))[0]) == 403
    assert status((await path_mode.ask(request.replace(SESSION, "bob-session") + "\r\n"))[0]) == 403
    assert status((await path_mode.ask(request.replace(SESSION, "nobody") + "\r\n"))[0]) == 401
    path_mode.set_phase(MINE, Phase.STANDBY)
    assert status((await path_mode.ask(request + FETCH + "\r\n"))[0]) == 503
    head, body = await path_mode.ask(request + NAVIGATE + "\r\n")
    assert status(head) == 200 and b"<progress" in body
    assert path_mode.facts.woken


async def test_path_mode_has_no_workspace_origins(path_mode: World) -> None:
    head, _ = await path_mode.ask(
        f"GET / HTTP/1.1\r\nHost: {MINE}.{path_mode.platform}\r\nCookie: session={SESSION}\r\n\r\n"
    )
    assert status(head) == 421
