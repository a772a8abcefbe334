"""Request targets and Host (RFC 9112, 3.2)."""

from tests.integration.gateway.conformance.case import Case, get, refused, request, saw_get

WHO = b"Cookie: {who}\r\n\r\n"

CASES = (
    Case("a query is passed on as it is", get(target=b"{base}/a?b=%20c&d"), saw_get(target=b"/a?b=%20c&d")),
    Case("dots are the upstream's to resolve", get(target=b"{base}/a/../b"), saw_get(target=b"/a/../b")),
    Case("escapes are not undone", get(target=b"{base}/%2e%2E/%00"), saw_get(target=b"/%2e%2E/%00")),
    Case("slashes are not joined", get(target=b"{base}//a//b"), saw_get(target=b"//a//b")),
    Case(
        "characters that browsers leave alone",
        get(target=b'{base}/{}|^`"<>\\'),
        saw_get(target=b'/{}|^`"<>\\'),
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
        saw_get(target=b"/a?b"),
    ),
    Case(
        "schemes and hosts have no case",
        get(target=b"HTTP://{host}{base}/a"),
        saw_get(target=b"/a"),
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
    refused("no Host", b"GET {base}/x HTTP/1.1\r\n" + WHO),
    refused("no Host in HTTP/1.0", b"GET {base}/x HTTP/1.0\r\n" + WHO),
    refused("an empty Host", b"GET {base}/x HTTP/1.1\r\nHost:\r\n" + WHO),
    refused("two Hosts", get(b"Host: {host}")),
    refused("two Hosts that differ", get(b"Host: other.example")),
    refused("a Host with a user", b"GET {base}/x HTTP/1.1\r\nHost: user@{host}\r\n" + WHO),
    refused("a Host with a path", b"GET {base}/x HTTP/1.1\r\nHost: {host}/a\r\n" + WHO),
    refused("a Host with a list", b"GET {base}/x HTTP/1.1\r\nHost: {host}, {host}\r\n" + WHO),
    refused("a Host with a space", b"GET {base}/x HTTP/1.1\r\nHost: {host} x\r\n" + WHO),
    refused(
        "a Host with a port that is no number", b"GET {base}/x HTTP/1.1\r\nHost: localhost:http\r\n" + WHO
    ),
    Case(
        "a Host that is nobody's",
        b"GET {base}/x HTTP/1.1\r\nHost: other.example\r\n" + WHO,
        gets=421,
    ),
    Case(
        "a Host that only begins as ours",
        b"GET {base}/x HTTP/1.1\r\nHost: localhost.other.example\r\n" + WHO,
        gets=421,
    ),
)
