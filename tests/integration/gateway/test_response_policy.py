"""Headers that keep other pages from framing and loading what a workspace answers."""

import pytest

from codehub.domain.states import Phase
from tests.integration.gateway.harness import (
    MINE,
    NAVIGATE,
    THEIRS,
    World,
    answering,
    header,
    headers,
    status,
    world,
)
from tests.integration.gateway.test_ports import App, host_of, listening, to_port

SAME_ORIGIN = "Sec-Fetch-Site: same-origin\r\nSec-Fetch-Mode: no-cors\r\nSec-Fetch-Dest: image\r\n"


def frame_ancestors(head: str) -> list[str]:
    return [value for value in headers(head, "content-security-policy") if "frame-ancestors" in value]


def answer(*lines: str) -> bytes:
    return "\r\n".join(["HTTP/1.1 200 OK", "Content-Length: 2", *lines, "", "ok"]).encode()


async def test_a_workspaces_answers_may_be_framed_and_loaded_by_itself_alone(origin: World) -> None:
    """Without Sec-Fetch headers, as browsers ask over plain http, only the browser can refuse."""
    for more in ("", "Accept: text/html\r\n", NAVIGATE, SAME_ORIGIN):
        head, _ = await origin.ask(origin.request(more=more))
        assert frame_ancestors(head) == ["frame-ancestors 'self'"]
        assert headers(head, "cross-origin-resource-policy") == ["same-origin"]


async def test_a_port_may_be_framed_by_its_ide(origin: World) -> None:
    async with listening(origin) as app:
        head, _ = await origin.ask(to_port(origin, app.port))
        assert frame_ancestors(head) == [f"frame-ancestors 'self' http://{origin.host}"]
        assert headers(head, "cross-origin-resource-policy") == ["same-origin"]


@pytest.mark.parametrize("metadata", ["", "Sec-Fetch-Mode: no-cors\r\nSec-Fetch-Site: same-site\r\n"])
async def test_the_ports_of_one_workspace_may_frame_and_load_each_other(origin: World, metadata: str) -> None:
    sister = f"http://{host_of(origin, 5173)}"
    async with listening(origin) as app:
        for more in (f"Referer: {sister}/page\r\n", f"Origin: {sister}\r\n"):
            head, _ = await origin.ask(to_port(origin, app.port, more=more + metadata))
            assert frame_ancestors(head) == [f"frame-ancestors 'self' http://{origin.host} {sister}"]
            assert headers(head, "cross-origin-resource-policy") == ["cross-origin"]
            # Or a page of another workspace would get it from the browser's cache.
            assert headers(head, "vary") == ["Origin, Referer"]


async def test_what_a_page_loaded_itself_is_not_taken_from_the_cache_for_a_sister(origin: World) -> None:
    head, _ = await origin.ask(origin.request(more=SAME_ORIGIN))
    assert headers(head, "vary") == ["Sec-Fetch-Site"]


@pytest.mark.parametrize(
    "other", ["http://evil.example", f"http://{THEIRS}.{{}}", f"http://80--{THEIRS}.{{}}", "http://{}"]
)
async def test_nobody_else_is_named_by_asking(origin: World, other: str) -> None:
    more = f"{NAVIGATE.replace('none', 'cross-site')}Referer: {other.format(origin.platform)}/\r\n"
    head, _ = await origin.ask(origin.request(more=more))
    assert (status(head), frame_ancestors(head)) == (200, ["frame-ancestors 'self'"])
    assert headers(head, "cross-origin-resource-policy") == ["same-origin"]


async def test_the_policy_of_an_app_stays_beside_ours(origin: World) -> None:
    """Browsers enforce every policy that they get."""
    own = "default-src 'self'; frame-ancestors 'none'"
    origin.ide.script = answering(answer(f"Content-Security-Policy: {own}", "Vary: Accept"))
    head, _ = await origin.ask(origin.request(more=SAME_ORIGIN))
    assert headers(head, "content-security-policy") == [own, "frame-ancestors 'self'"]
    assert headers(head, "vary") == ["Accept", "Sec-Fetch-Site"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("DENY",), "frame-ancestors 'none'"),
        (("SameOrigin",), "frame-ancestors 'self'"),
        (("SAMEORIGIN, DENY",), "frame-ancestors 'none'"),
        (("SAMEORIGIN", "DENY"), "frame-ancestors 'none'"),
        (("ALLOWALL",), "frame-ancestors 'self' {ide}"),
    ],
)
async def test_frame_options_of_an_app_hold_although_frame_ancestors_replaces_them(
    origin: World, options: tuple[str, ...], expected: str
) -> None:
    async with listening(origin) as app:
        app.script = answering(answer(*(f"X-Frame-Options: {value}" for value in options)))
        head, _ = await origin.ask(to_port(origin, app.port))
        assert frame_ancestors(head) == [expected.format(ide=f"http://{origin.host}")]


async def test_an_app_cannot_open_itself_to_others(origin: World) -> None:
    """Two lines of this field would read as none."""
    origin.ide.script = answering(answer("Cross-Origin-Resource-Policy: cross-origin"))
    head, _ = await origin.ask(origin.request())
    assert headers(head, "cross-origin-resource-policy") == ["same-origin"]


async def test_in_the_path_mode_everything_is_one_origin(path: World) -> None:
    async with listening(path) as app:
        for target in ("/", f"/proxy/{app.port}/", f"/absproxy/{app.port}/"):
            head, body = await path.ask(path.entrance(target))
            assert (status(head), body) == (200, b"hello")
            assert frame_ancestors(head) == ["frame-ancestors 'self'"]
            assert headers(head, "cross-origin-resource-policy") == ["same-origin"]


async def test_the_api_answers_with_its_own_policy_alone(origin: World) -> None:
    head, _ = await origin.ask(f"GET /api/v1/session HTTP/1.1\r\nHost: {origin.platform}\r\n\r\n")
    assert status(head) == 200 and not frame_ancestors(head) and not headers(head, "vary")


async def test_requests_that_repeat_carry_the_same_policy(origin: World) -> None:
    client = await origin.connect()
    for _ in range(3):
        client.send(origin.request(more=SAME_ORIGIN))
        head, _ = await client.response()
        assert frame_ancestors(head) == ["frame-ancestors 'self'"]
    client.close()


async def test_an_app_that_answers_alike_for_two_askers_gets_two_policies(origin: World) -> None:
    """Heads that were read once are remembered, and their policy is not."""
    sister = f"Referer: http://{host_of(origin, 5173)}/\r\n"
    for _ in range(2):
        shared, _ = await origin.ask(origin.request(more=sister))
        own, _ = await origin.ask(origin.request())
        assert header(shared, "cross-origin-resource-policy") == "cross-origin"
        assert header(own, "cross-origin-resource-policy") == "same-origin"


# HSTS

PUBLIC = {"scheme": "https", "public": "hub.example.org", "apps_domain": "apps.example.net"}


async def test_with_https_browsers_are_told_to_stay_with_it() -> None:
    async with world(**PUBLIC) as made:
        workspace = made.request()
        page = f"GET / HTTP/1.1\r\nHost: {made.host}\r\n{NAVIGATE}\r\n"
        api = f"GET / HTTP/1.1\r\nHost: {made.platform}\r\n\r\n"
        login = f"GET /w/{MINE}/ HTTP/1.1\r\nHost: {made.platform}\r\n{NAVIGATE}\r\n"
        for request in (workspace, page, api, login):
            head, _ = await made.ask(request)
            assert headers(head, "strict-transport-security") == ["max-age=31536000"], request
        head, _ = await made.ask("GET /healthz HTTP/1.1\r\nHost: other.example\r\n\r\n")
        assert (status(head), headers(head, "strict-transport-security")) == (200, [])
        made.set_phase(MINE, Phase.ARCHIVED)
        entrance = made.entrance().replace("session=", "__Host-session=")
        head, _ = await made.ask(entrance)
        assert (status(head), len(headers(head, "strict-transport-security"))) == (502, 1)


async def test_a_workspace_does_not_decide_for_its_host_or_the_platforms() -> None:
    async with world(**PUBLIC) as made:
        planted = "Strict-Transport-Security: max-age=0; includeSubDomains; preload"
        made.ide.script = answering(answer(planted))
        head, _ = await made.ask(made.request())
        assert headers(head, "strict-transport-security") == ["max-age=31536000"]


async def test_hsts_harms_no_other_service_of_a_host() -> None:
    """It holds for every port of a host, so a platform on a port of its own does not claim the whole host."""
    async with world() as plain, world(scheme="https") as loopback:
        for made in (plain, loopback):
            for host in (made.host, made.platform):
                head, _ = await made.ask(f"GET / HTTP/1.1\r\nHost: {host}\r\n{NAVIGATE}\r\n")
                assert headers(head, "strict-transport-security") == []
    other_port = {**PUBLIC, "public": "hub.example.org:8443"}
    async with world(**other_port) as made:
        head, _ = await made.ask(f"GET / HTTP/1.1\r\nHost: {made.platform}\r\n\r\n")
        assert headers(head, "strict-transport-security") == []
        head, _ = await made.ask(made.request())
        assert headers(head, "strict-transport-security") == ["max-age=31536000"]


async def test_a_frame_of_a_port_that_answers_nothing_is_the_gateways_own_page(origin: World) -> None:
    async with listening(origin, App()) as app:
        head, _ = await origin.ask(to_port(origin, app.port + 1, more=NAVIGATE))
        assert "frame-ancestors 'none'" in frame_ancestors(head)[0]
