"""Every request is routed independently of earlier ones on its connection."""

from tests.integration.gateway.conformance.case import (
    FORWARDED_FIELDS,
    Case,
    Mode,
    get,
    post,
    refused,
    upstream_get,
)

UNKNOWN = b"/w/01hzy0000000000000000000zz/x"
API_REQUEST = b"GET /api/v1/x HTTP/1.1\r\nhost: {host}\r\ncookie: {cookie}\r\n" + FORWARDED_FIELDS

CASES = (
    Case("another workspace with the same fields", get(target=UNKNOWN), returned=404, mode=Mode.PATH),
    Case("the API with the same fields", get(target=b"/api/v1/x"), API_REQUEST, to_api=True, mode=Mode.PATH),
    Case("the path of a workspace without its slash", get(target=b"{base}"), returned=308, mode=Mode.PATH),
    Case("the path of a workspace with a query", get(target=b"{base}?a"), returned=308, mode=Mode.PATH),
    Case(
        "a path that only begins like a workspace's",
        get(target=b"{base}x/"),
        API_REQUEST.replace(b"/api/v1/x", b"{base}x/"),
        to_api=True,
        mode=Mode.PATH,
    ),
    Case(
        "a path with dot segments stays in the workspace",
        get(target=b"{base}/../../api"),
        upstream_get(target=b"/../../api"),
        mode=Mode.PATH,
    ),
    Case(
        "the platform's path on a workspace's origin",
        get(target=b"/.codehub/x"),
        returned=404,
        mode=Mode.ORIGIN,
    ),
    Case(
        "a ticket that was never issued",
        get(target=b"/.codehub/enter?ticket=x"),
        returned=401,
        mode=Mode.ORIGIN,
    ),
    Case(
        "a path of the API on a workspace's origin goes to the workspace",
        get(target=b"/api/v1/x"),
        upstream_get(target=b"/api/v1/x"),
        mode=Mode.ORIGIN,
    ),
    Case(
        "a path of a workspace on a workspace's origin goes to the workspace",
        get(target=UNKNOWN),
        upstream_get(target=UNKNOWN),
        mode=Mode.ORIGIN,
    ),
    refused("another field with the length of Host", get().replace(b"Host", b"Hort")),
    Case("another field with the length of Cookie", get().replace(b"Cookie", b"Cooked"), returned=401),
    Case("another site's page", get(b"Origin: http://other.example"), returned=403),
    Case("another site's form", get(b"Sec-Fetch-Site: cross-site"), returned=403),
    Case("another workspace's page", get(b"Sec-Fetch-Site: same-site"), returned=403),
    Case("an origin that is null", post(b"Origin: null"), returned=403),
    Case(
        "the workspace's own page",
        get(b"Sec-Fetch-Site: same-origin"),
        upstream_get(b"sec-fetch-site: same-origin"),
    ),
)
