"""Where a request goes is looked at each time, whatever went before it on the connection."""

from tests.integration.gateway.conformance.case import VIA, Case, Mode, get, post, refused, saw_get

UNKNOWN = b"/w/01hzy0000000000000000000zz/x"
TO_API = b"GET /api/v1/x HTTP/1.1\r\nhost: {host}\r\ncookie: {who}\r\n" + VIA

CASES = (
    Case("another workspace, by the same fields", get(target=UNKNOWN), gets=404, mode=Mode.PATH),
    Case("the API, by the same fields", get(target=b"/api/v1/x"), TO_API, by_api=True, mode=Mode.PATH),
    Case("the door of a workspace without its slash", get(target=b"{base}"), gets=308, mode=Mode.PATH),
    Case("the door with a query", get(target=b"{base}?a"), gets=308, mode=Mode.PATH),
    Case(
        "what only begins like the door",
        get(target=b"{base}x/"),
        TO_API.replace(b"/api/v1/x", b"{base}x/"),
        by_api=True,
        mode=Mode.PATH,
    ),
    Case(
        "a path out of the workspace stays in it",
        get(target=b"{base}/../../api"),
        saw_get(target=b"/../../api"),
        mode=Mode.PATH,
    ),
    Case(
        "the platform's path on a workspace's origin", get(target=b"/.codehub/x"), gets=404, mode=Mode.ORIGIN
    ),
    Case(
        "a ticket that was never given", get(target=b"/.codehub/enter?ticket=x"), gets=401, mode=Mode.ORIGIN
    ),
    Case(
        "the API's paths on a workspace's origin are its own",
        get(target=b"/api/v1/x"),
        saw_get(target=b"/api/v1/x"),
        mode=Mode.ORIGIN,
    ),
    Case(
        "the door's path on a workspace's origin is its own",
        get(target=UNKNOWN),
        saw_get(target=UNKNOWN),
        mode=Mode.ORIGIN,
    ),
    refused("a field as long as Host that is none", get().replace(b"Host", b"Hort")),
    Case("a field as long as Cookie that is none", get().replace(b"Cookie", b"Cooked"), gets=401),
    Case("another site's page", get(b"Origin: http://other.example"), gets=403),
    Case("another site's form", get(b"Sec-Fetch-Site: cross-site"), gets=403),
    Case("another workspace's page", get(b"Sec-Fetch-Site: same-site"), gets=403),
    Case("an origin that is null", post(b"Origin: null"), gets=403),
    Case(
        "the workspace's own page",
        get(b"Sec-Fetch-Site: same-origin"),
        saw_get(b"sec-fetch-site: same-origin"),
    ),
)
