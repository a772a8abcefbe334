"""A ticket opens a workspace only in the browser that requested it."""

import asyncio
from urllib.parse import parse_qs, urlsplit

import pytest

from codehub.domain.states import Phase
from tests.integration.gateway.browser import Browser
from tests.integration.gateway.harness import MINE, SESSION, World, header, headers, session_hash, world

DEEP = "/a%20b/c?folder=/x%2Fy&q=1+2"


@pytest.fixture(params=["the IDE", "a port"])
async def addresses(request: pytest.FixtureRequest, origin_mode: World) -> tuple[str, str]:
    """The entry URL on the platform, and the origin that it redirects to."""
    port = 3000 if request.param == "a port" else 0
    origins = origin_mode.config.origins
    return origins.entry_url(MINE, port), origins.workspace_origin(MINE, port)


def workspace_cookies(browser: Browser, own: str) -> list[str]:
    return [name for name in browser.jar.get(urlsplit(own).netloc, {}) if "codehub-workspace" in name]


async def test_a_link_with_a_ticket_opens_nothing_in_another_browser(
    origin_mode: World, addresses: tuple[str, str]
) -> None:
    entry, own = addresses
    for victim in (Browser(origin_mode, "bob-session"), Browser(origin_mode, "")):
        link = await Browser(origin_mode).find_ticket(f"{entry}{DEEP}")
        assert link.startswith(f"{own}/.codehub/enter?")
        answer = await victim.navigate(link)
        assert (answer.status, workspace_cookies(victim, own)) == (403, [])
        assert "another browser" in answer.body and f'href="{entry}/a%20b/c?' in answer.body
    assert not origin_mode.ide.heads


async def test_a_link_with_a_ticket_opens_nothing_in_a_browser_with_another_nonce(
    origin_mode: World, addresses: tuple[str, str]
) -> None:
    entry, own = addresses
    victim = Browser(origin_mode, "bob-session")
    assert (await victim.open(f"{own}/")).status == 403
    assert victim.jar[urlsplit(own).netloc], "the browser has another nonce"
    answer = await victim.navigate(await Browser(origin_mode).find_ticket(f"{entry}/"))
    assert (answer.status, workspace_cookies(victim, own)) == (403, [])


async def test_the_button_of_the_refusal_enters_with_a_new_ticket(origin_mode: World) -> None:
    owner, elsewhere = Browser(origin_mode), Browser(origin_mode)
    link = await owner.find_ticket(f"{origin_mode.config.origins.entry_url(MINE)}{DEEP}")
    refused = await elsewhere.navigate(link)
    assert refused.status == 403
    button = refused.body.partition('class="button" href="')[2].partition('"')[0].replace("&amp;", "&")
    answer = await elsewhere.open(button)
    assert (answer.status, answer.body, answer.url) == (200, "hello", f"http://{origin_mode.host}{DEEP}")


@pytest.mark.parametrize("first", ["entry", "workspace"])
async def test_a_deep_link_is_kept_through_all_redirects(origin_mode: World, first: str) -> None:
    origins = origin_mode.config.origins
    base = origins.entry_url(MINE) if first == "entry" else origins.workspace_origin(MINE)
    browser = Browser(origin_mode)
    answer = await browser.open(f"{base}{DEEP}")
    assert (answer.status, answer.url) == (200, f"http://{origin_mode.host}{DEEP}")
    assert origin_mode.ide.heads[-1].startswith(f"GET {DEEP} ".encode())
    assert b"codehub" not in origin_mode.ide.heads[-1].partition(b"host:")[0]
    assert header(origin_mode.ide.heads[-1].decode(), "cookie") is None, (
        "the nonce does not reach the workspace"
    )


async def test_a_visit_to_an_origin_without_a_cookie_enters_it(
    origin_mode: World, addresses: tuple[str, str]
) -> None:
    own = addresses[1]
    browser = Browser(origin_mode)
    arrived = await browser.navigate(await browser.find_ticket(f"{own}{DEEP}"))
    assert arrived.location == f"{own}{DEEP}"
    assert len(workspace_cookies(browser, own)) == 1


async def test_blocked_cookies_are_reported_after_one_round_of_redirects(
    origin_mode: World, addresses: tuple[str, str]
) -> None:
    entry, own = addresses
    for url in (f"{entry}/x", f"{own}/x"):
        blocking = Browser(origin_mode, blocks=(urlsplit(own).netloc,))
        answer = await blocking.open(url)
        assert answer.status == 403 and "cookies" in answer.body


async def test_the_nonce_is_a_short_lived_host_only_cookie(origin_mode: World) -> None:
    answer = await Browser(origin_mode).navigate(f"http://{origin_mode.host}/x")
    (cookie,) = headers(answer.head, "set-cookie")
    name, *attributes = (part.strip() for part in cookie.split(";"))
    assert name.startswith("codehub-entry-")
    assert {"Path=/", "HttpOnly", "SameSite=Lax", "Max-Age=120"} == set(attributes)
    nonce = parse_qs(urlsplit(answer.location).query)["nonce"][0]
    assert name.partition("=")[2] not in answer.location and len(nonce) == 64
    async with world(scheme="https") as made:
        head = (await Browser(made).navigate(f"https://{made.host}/x")).head
        cookie = header(head, "set-cookie") or ""
        assert cookie.startswith("__Host-codehub-entry-") and "; Secure" in cookie


async def test_several_tabs_can_enter_at_once(origin_mode: World) -> None:
    """Each tab of a restored window sends its request before any has a cookie."""
    browser = Browser(origin_mode)
    first = await asyncio.gather(
        *(browser.navigate(f"http://{origin_mode.host}/tab{tab}") for tab in range(4))
    )
    tickets = [await browser.navigate(answer.location) for answer in first]
    arrived = [await browser.navigate(answer.location) for answer in tickets]
    assert [answer.location for answer in arrived] == [
        f"http://{origin_mode.host}/tab{tab}" for tab in range(4)
    ]


async def test_a_nonce_is_reused_while_it_is_valid(origin_mode: World) -> None:
    """Otherwise each new tab would add a cookie."""
    browser = Browser(origin_mode)
    locations = [(await browser.navigate(f"http://{origin_mode.host}/{tab}")).location for tab in range(3)]
    assert len(browser.jar[origin_mode.host]) == 1
    assert len({parse_qs(urlsplit(location).query)["nonce"][0] for location in locations}) == 1


async def test_no_ticket_is_issued_without_a_valid_nonce(origin_mode: World) -> None:
    origins = origin_mode.config.origins
    for query in ("", "?to=/x", "?nonce=x&to=/x", f"?nonce={'0' * 63}&to=/x", f"?nonce={'G' * 64}&to=/x"):
        answer = await Browser(origin_mode).navigate(f"{origins.entry_url(MINE)}/.codehub/enter{query}")
        assert answer.status == 302 and "ticket=" not in answer.location
    assert not origin_mode.tickets.issued


@pytest.mark.parametrize(("session", "expected"), [("", "/login?next="), ("bob-session", "")])
async def test_entry_with_a_nonce_still_needs_the_owners_session(
    origin_mode: World, session: str, expected: str
) -> None:
    browser = Browser(origin_mode, session)
    answer = await browser.open(f"http://{origin_mode.host}{DEEP}", until="/login")
    if expected:
        assert f"/login?next=/w/{MINE}/a%2520b/c%3Ffolder" in answer.location
    else:
        assert (answer.status, "someone else" in answer.body) == (403, True)
    assert not origin_mode.tickets.issued


async def test_a_status_page_has_the_url_without_the_nonce(origin_mode: World) -> None:
    origin_mode.set_phase(MINE, Phase.ARCHIVED)
    answer = await Browser(origin_mode).open(f"http://{origin_mode.host}{DEEP}")
    assert (answer.status, answer.url) == (502, f"http://{origin_mode.platform}/w/{MINE}{DEEP}")


async def test_only_a_navigation_can_enter(origin_mode: World) -> None:
    entry = origin_mode.config.origins.entry_url(MINE)
    fetch = "Sec-Fetch-Site: same-origin\r\nSec-Fetch-Mode: cors\r\nSec-Fetch-Dest: empty\r\n"
    browser = Browser(origin_mode, more=fetch)
    for url in (f"{entry}/", f"{entry}/.codehub/enter?nonce={'0' * 64}&to=/"):
        assert (await browser.navigate(url)).status == 403
    assert (await browser.navigate(f"http://{origin_mode.host}/.codehub/begin?to=/")).status == 401
    assert not origin_mode.tickets.issued and origin_mode.host not in browser.jar


async def test_a_client_without_fetch_metadata_enters_with_its_cookies(origin_mode: World) -> None:
    """Examples are curl with a cookie file, and a browser over plain http."""
    for more in ("", "Accept: */*\r\n", "Accept: text/html\r\n"):
        answer = await Browser(origin_mode, more=more).open(
            f"{origin_mode.config.origins.entry_url(MINE)}/healthz"
        )
        assert (answer.status, answer.body) == (200, "hello"), more


async def test_each_entry_renews_the_cookie_for_the_current_session(origin_mode: World) -> None:
    """A cookie of an older session would become invalid with that session."""
    origin_mode.facts.session_users[session_hash("newer")] = origin_mode.facts.session_users[
        session_hash(SESSION)
    ]
    browser = Browser(origin_mode)
    entry = f"{origin_mode.config.origins.entry_url(MINE)}/"
    await browser.open(entry)
    browser.jar[origin_mode.platform]["session"] = "newer"
    await browser.open(entry)
    del origin_mode.facts.session_users[session_hash(SESSION)]
    origin_mode.gateway.revocation.on_session_ended(session_hash(SESSION))
    assert (await browser.navigate(f"http://{origin_mode.host}/")).body == "hello"
