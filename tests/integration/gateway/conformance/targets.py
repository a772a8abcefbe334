"""Request targets and Host (RFC 9112, 3.2)."""

from tests.integration.gateway.conformance.case import Case, get, refused, request, upstream_get

COOKIE = b"Cookie: {cookie}\r\n\r\n"

CASES = (
    Case(
        "a query is forwarded unchanged",
        get(target=b"{base}/a?b=%20c&d"),
        upstream_get(target=b"/a?b=%20c&d"),
    ),
    Case("dot segments are not resolved", get(target=b"{base}/a/../b"), upstream_get(target=b"/a/../b")),
    Case("escapes are not decoded", get(target=b"{base}/%2e%2E/%00"), upstream_get(target=b"/%2e%2E/%00")),
    Case("repeated slashes are kept", get(target=b"{base}//a//b"), upstream_get(target=b"//a//b")),
    Case(
        "characters that browsers do not escape",
        get(target=b'{base}/{}|^`"<>\\'),
        upstream_get(target=b'/{}|^`"<>\\'),
    ),
    refused("a fragment", get(target=b"{base}/a#b")),
    refused("a space in the target", get(target=b"{base}/a b")),
    refused("a tab in the target", get(target=b"{base}/a\tb")),
    refused("a target that is not ASCII", get(target=b"{base}/\xc3\xa9")),
    refused("NUL in the target", get(target=b"{base}/\x00")),
    refused("DEL in the target", get(target=b"{base}/\x7f")),
    refused("a relative path", get(target=b"a/b")),
    refused("a query alone", get(target=b"?a")),
    refused("no target", get(target=b"")),
    Case(
        "the absolute form that agrees with Host",
        get(target=b"http://{host}{base}/a?b"),
        upstream_get(target=b"/a?b"),
    ),
    Case(
        "schemes and hosts are case-insensitive",
        get(target=b"HTTP://{host}{base}/a"),
        upstream_get(target=b"/a"),
    ),
    refused("the absolute form of another host", get(target=b"http://other.example{base}/a")),
    refused("the absolute form with a user", get(target=b"http://user@{host}{base}/a")),
    refused("the absolute form with another port", get(target=b"http://{host}1{base}/a")),
    refused("the absolute form without an authority", get(target=b"http:///a")),
    refused("an absolute form of another scheme", get(target=b"file:///etc/passwd")),
    refused("the absolute form with a fragment", get(target=b"http://{host}{base}/a#b")),
    refused("the authority form", get(target=b"{host}")),
    refused("the asterisk form", request(b"OPTIONS", target=b"*")),
    refused("the asterisk form for GET", get(target=b"*")),
    refused("no Host", b"GET {base}/x HTTP/1.1\r\n" + COOKIE),
    refused("no Host in HTTP/1.0", b"GET {base}/x HTTP/1.0\r\n" + COOKIE),
    refused("an empty Host", b"GET {base}/x HTTP/1.1\r\nHost:\r\n" + COOKIE),
    refused("two Hosts", get(b"Host: {host}")),
    refused("two Hosts that differ", get(b"Host: other.example")),
    refused("a Host with a user", b"GET {base}/x HTTP/1.1\r\nHost: user@{host}\r\n" + COOKIE),
    refused("a Host with a path", b"GET {base}/x HTTP/1.1\r\nHost: {host}/a\r\n" + COOKIE),
    refused("a Host with a list", b"GET {base}/x HTTP/1.1\r\nHost: {host}, {host}\r\n" + COOKIE),
    refused("a Host with a space", b"GET {base}/x HTTP/1.1\r\nHost: {host} x\r\n" + COOKIE),
    refused(
        "a Host with a port that is not a number",
        b"GET {base}/x HTTP/1.1\r\nHost: localhost:http\r\n" + COOKIE,
    ),
    Case(
        "an unknown Host",
        b"GET {base}/x HTTP/1.1\r\nHost: other.example\r\n" + COOKIE,
        returned=421,
    ),
    Case(
        "a Host that only begins like the platform's",
        b"GET {base}/x HTTP/1.1\r\nHost: localhost.other.example\r\n" + COOKIE,
        returned=421,
    ),
)
