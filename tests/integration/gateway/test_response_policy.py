"""Headers that prevent other pages from framing and loading responses of a workspace."""

import pytest

from codehub.domain.states import Phase
from tests.integration.gateway.harness import (
    MINE,
    NAVIGATE,
    THEIRS,
    World,
    header,
    headers,
    respond_with,
    status,
    world,
)
from tests.integration.gateway.test_ports import App, host_of, listening, to_port

SAME_ORIGIN = "Sec-Fetch-Site: same-origin\r\nSec-Fetch-Mode: no-cors\r\nSec-Fetch-Dest: image\r\n"


def frame_ancestors(head: str) -> list[str]:
    return [value for value in headers(head, "content-security-policy") if "frame-ancestors" in value]


def response(*lines: str) -> bytes:
    return "\r\n".join(["HTTP/1.1 200 OK", "Content-Length: 2", *lines, "", "ok"]).encode()


async def test_only_the_workspace_may_frame_and_load_its_responses(origin_mode: World) -> None:
    """Over plain http browsers send no Sec-Fetch headers, so only the browser can refuse."""
    for more in ("", "Accept: text/html\r\n", NAVIGATE, SAME_ORIGIN):
        head, _ = await origin_mode.ask(origin_mode.request(more=more))
        assert frame_ancestors(head) == ["frame-ancestors 'self'"]
        assert headers(head, "cross-origin-resource-policy") == ["same-origin"]


async def test_a_port_may_be_framed_by_its_ide(origin_mode: World) -> None:
    async with listening(origin_mode) as app:
        head, _ = await origin_mode.ask(to_port(origin_mode, app.port))
        assert frame_ancestors(head) == [f"frame-ancestors 'self' http://{origin_mode.host}"]
        assert headers(head, "cross-origin-resource-policy") == ["same-origin"]


@pytest.mark.parametrize("metadata", ["", "Sec-Fetch-Mode: no-cors\r\nSec-Fetch-Site: same-site\r\n"])
async def test_the_ports_of_one_workspace_may_frame_and_load_each_other(
    origin_mode: World, metadata: str
) -> None:
    sibling = f"http://{host_of(origin_mode, 5173)}"
    async with listening(origin_mode) as app:
        for more in (f"Referer: {sibling}/page\r\n", f"Origin: {sibling}\r\n"):
            head, _ = await origin_mode.ask(to_port(origin_mode, app.port, more=more + metadata))
            assert frame_ancestors(head) == [f"frame-ancestors 'self' http://{origin_mode.host} {sibling}"]
            assert headers(head, "cross-origin-resource-policy") == ["cross-origin"]
            # Otherwise the browser's cache would serve it to a page of another workspace.
            assert headers(head, "vary") == ["Origin, Referer"]


async def test_the_cache_does_not_reuse_a_same_origin_response_for_a_sibling(origin_mode: World) -> None:
    head, _ = await origin_mode.ask(origin_mode.request(more=SAME_ORIGIN))
    assert headers(head, "vary") == ["Sec-Fetch-Site"]


@pytest.mark.parametrize(
    "other", ["http://evil.example", f"http://{THEIRS}.{{}}", f"http://80--{THEIRS}.{{}}", "http://{}"]
)
async def test_a_foreign_referer_is_not_added_to_the_policy(origin_mode: World, other: str) -> None:
    more = f"{NAVIGATE.replace('none', 'cross-site')}Referer: {other.format(origin_mode.platform)}/\r\n"
    head, _ = await origin_mode.ask(origin_mode.request(more=more))
    assert (status(head), frame_ancestors(head)) == (200, ["frame-ancestors 'self'"])
    assert headers(head, "cross-origin-resource-policy") == ["same-origin"]


async def test_the_policy_of_an_app_is_kept_beside_the_gateways(origin_mode: World) -> None:
    """Browsers enforce each policy that they receive."""
    own = "default-src 'self'; frame-ancestors 'none'"
    origin_mode.ide.script = respond_with(response(f"Content-Security-Policy: {own}", "Vary: Accept"))
    head, _ = await origin_mode.ask(origin_mode.request(more=SAME_ORIGIN))
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
async def test_frame_options_of_an_app_restrict_frame_ancestors(
    origin_mode: World, options: tuple[str, ...], expected: str
) -> None:
    async with listening(origin_mode) as app:
        app.script = respond_with(response(*(f"X-Frame-Options: {value}" for value in options)))
        head, _ = await origin_mode.ask(to_port(origin_mode, app.port))
        assert frame_ancestors(head) == [expected.format(ide=f"http://{origin_mode.host}")]


async def test_an_app_cannot_relax_its_resource_policy(origin_mode: World) -> None:
    """Browsers ignore this field if it has two lines."""
    origin_mode.ide.script = respond_with(response("Cross-Origin-Resource-Policy: cross-origin"))
    head, _ = await origin_mode.ask(origin_mode.request())
    assert headers(head, "cross-origin-resource-policy") == ["same-origin"]


async def test_in_path_mode_everything_is_one_origin(path_mode: World) -> None:
    async with listening(path_mode) as app:
        for target in ("/", f"/proxy/{app.port}/", f"/absproxy/{app.port}/"):
            head, body = await path_mode.ask(path_mode.entrance(target))
            assert (status(head), body) == (200, b"hello")
            assert frame_ancestors(head) == ["frame-ancestors 'self'"]
            assert headers(head, "cross-origin-resource-policy") == ["same-origin"]


async def test_responses_of_the_api_have_only_its_own_policy(origin_mode: World) -> None:
    head, _ = await origin_mode.ask(f"GET /api/v1/session HTTP/1.1\r\nHost: {origin_mode.platform}\r\n\r\n")
    assert status(head) == 200 and not frame_ancestors(head) and not headers(head, "vary")


async def test_responses_to_repeated_requests_have_the_same_policy(origin_mode: World) -> None:
    client = await origin_mode.connect()
    for _ in range(3):
        client.send(origin_mode.request(more=SAME_ORIGIN))
        head, _ = await client.response()
        assert frame_ancestors(head) == ["frame-ancestors 'self'"]
    client.close()


async def test_equal_responses_to_different_pages_have_different_policies(origin_mode: World) -> None:
    """The gateway caches parsed heads, but not their policy."""
    sibling = f"Referer: http://{host_of(origin_mode, 5173)}/\r\n"
    for _ in range(2):
        shared, _ = await origin_mode.ask(origin_mode.request(more=sibling))
        own, _ = await origin_mode.ask(origin_mode.request())
        assert header(shared, "cross-origin-resource-policy") == "cross-origin"
        assert header(own, "cross-origin-resource-policy") == "same-origin"


# HSTS

PUBLIC = {"scheme": "https", "public": "hub.example.org", "apps_domain": "apps.example.net"}


async def test_responses_over_https_have_hsts() -> None:
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


async def test_a_workspace_cannot_set_hsts() -> None:
    async with world(**PUBLIC) as made:
        planted = "Strict-Transport-Security: max-age=0; includeSubDomains; preload"
        made.ide.script = respond_with(response(planted))
        head, _ = await made.ask(made.request())
        assert headers(head, "strict-transport-security") == ["max-age=31536000"]


async def test_hsts_is_not_set_for_a_host_that_other_services_may_use() -> None:
    """HSTS applies to all ports of a host, so a platform on a port other than 443 omits it."""
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


async def test_the_error_page_of_a_port_cannot_be_framed(origin_mode: World) -> None:
    async with listening(origin_mode, App()) as app:
        head, _ = await origin_mode.ask(to_port(origin_mode, app.port + 1, more=NAVIGATE))
        assert "frame-ancestors 'none'" in frame_ancestors(head)[0]
