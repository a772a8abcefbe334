"""Cookies and tokens of the platform never reach a workspace, and a workspace cannot set them."""

from base64 import b64encode

from tests.integration.gateway.conformance.case import FORWARDED_FIELDS, OK, Case, Mode, get, upstream_get

TOKEN = b"chub_" + b"0123456789" * 4
START = b"GET {base}/x HTTP/1.1\r\nHost: {host}\r\n"
FORWARDED = b"GET /x HTTP/1.1\r\nhost: {host}\r\n"


def cookie_lines(name: str, *cookies: bytes, left: bytes = b"", mode: Mode = Mode.BOTH) -> Case:
    """Return a case with these lines of Cookie. The workspace receives one line with `left`."""
    lines = b"".join(b"Cookie: %b\r\n" % cookie for cookie in cookies)
    forwarded = FORWARDED + (b"cookie: %b\r\n" % left if left else b"") + FORWARDED_FIELDS
    return Case(name, START + lines + b"\r\n", forwarded, mode=mode)


def second_session(name: str, cookie: bytes, left: bytes = b"") -> tuple[Case, Case]:
    """Return cases with a second session: refused in path mode, removed in origin mode."""
    sent = START + b"Cookie: %b\r\n\r\n" % cookie
    refusal = Case(f"{name}, on the platform's origin", sent, returned=400, mode=Mode.PATH)
    return cookie_lines(name, cookie, left=left, mode=Mode.ORIGIN), refusal


def token(name: str, value: bytes, *, kept: bool = False) -> Case:
    forwarded = upstream_get(b"authorization: " + value) if kept else upstream_get()
    return Case(name, get(b"Authorization: " + value), forwarded)


def planted(name: str, *cookies: bytes, kept: bool = False) -> Case:
    lines = b"".join(b"Set-Cookie: %b\r\n" % cookie for cookie in cookies)
    answer = OK.replace(b"Content-Length", lines + b"Content-Length")
    return Case(name, get(), upstream_get(), answer if kept else OK, response=answer)


CASES = (
    cookie_lines("among others", b"a=1; {cookie}; b=2", left=b"a=1; b=2"),
    cookie_lines("in a separate line", b"a=1", b"{cookie}", b"b=2", left=b"a=1; b=2"),
    cookie_lines("without spaces", b"a=1;{cookie};b=2", left=b"a=1; b=2"),
    cookie_lines("with too many spaces", b"a=1 ;  {cookie} ;; b=2;", left=b"a=1; b=2"),
    *second_session("every name of the platform", b"session=s; codehub-workspace=w; {cookie}"),
    cookie_lines(
        "names with the prefix", b"{cookie}; __Host-session=s; __Host-codehub-workspace=w; a=1", left=b"a=1"
    ),
    cookie_lines(
        "names in another case",
        b"{cookie}; SESSION=s; __HOST-Session=s; CodeHub-Workspace=w; a=1",
        left=b"a=1",
    ),
    *second_session("a name without a value", b"session; {cookie}; a=1", left=b"a=1"),
    *second_session("whitespace around a name", b"session =s; \tsession\t=s; a=1; {cookie}", left=b"a=1"),
    cookie_lines("whitespace that is not ASCII", b"{cookie}; \xa0session=s; session\x85=s; a=1", left=b"a=1"),
    *second_session("in quotes", b'a="x; session=s; y"; {cookie}', left=b'a="x; y"'),
    cookie_lines("a quote that does not end", b'a="; {cookie}; b=2', left=b'a="; b=2'),
    cookie_lines(
        "a name that only contains a platform name",
        b"{cookie}; my-session=1; sessions=2",
        left=b"my-session=1; sessions=2",
    ),
    cookie_lines("a value that looks like a platform cookie", b"{cookie}; a=session=1", left=b"a=session=1"),
    cookie_lines("an empty name", b"{cookie}; =1; a=2", left=b"=1; a=2"),
    cookie_lines("a huge cookie", b"a=" + b"1" * 12_000 + b"; {cookie}", left=b"a=" + b"1" * 12_000),
    cookie_lines("very many cookies", b"a=1; " * 255 + b"{cookie}", left=b"; ".join([b"a=1"] * 255)),
    Case("one cookie too many", START + b"Cookie: %b{cookie}\r\n\r\n" % (b"a=1; " * 256), returned=431),
    Case("too huge a cookie", START + b"Cookie: a=%b; {cookie}\r\n\r\n" % (b"1" * 12_500), returned=431),
    Case("too many cookies", START + b"Cookie: %b{cookie}\r\n\r\n" % (b"a=1; " * 3000), returned=431),
    Case("too many in several lines", START + b"Cookie: %b\r\n" % (b"1" * 5000) * 3 + b"\r\n", returned=431),
    Case("no cookie at all", b"GET {base}/x HTTP/1.1\r\nHost: {host}\r\n\r\n", returned=401),
    Case(
        "a cookie of an unknown session",
        START + b"Cookie: session=x; codehub-workspace=y\r\n\r\n",
        returned=401,
    ),
    token("a token", b"Bearer chub_abc"),
    token("a token under another scheme", b"token chub_abc"),
    token("a token without a scheme", b"chub_abc"),
    token("a token after a tab", b"Bearer\tchub_abc"),
    token("a token in a parameter", b'Token token="chub_abc"'),
    token("a token of another service", b"Bearer ghp_abc", kept=True),
    token("a name and a password", b"Basic dXNlcjpwdw==", kept=True),
    Case("a token as an API key", get(b"X-Api-Key: " + TOKEN), upstream_get()),
    Case("a token as a password", get(b"Authorization: Basic " + b64encode(b"me:" + TOKEN)), upstream_get()),
    Case("a token as a user name", get(b"Authorization: Basic " + b64encode(TOKEN + b":")), upstream_get()),
    cookie_lines("a token in a cookie", b"a=1; t=" + TOKEN + b"; {cookie}", left=b"a=1"),
    Case("a token in the query", get(target=b"{base}/x?t=" + TOKEN), returned=400),
    Case("a token in the path", get(target=b"{base}/" + TOKEN), returned=400),
    Case("a token with encoded characters", get(target=b"{base}/x?t=%63" + TOKEN[1:]), returned=400),
    Case("a path that starts like a token", get(target=b"{base}/chub_x"), upstream_get(target=b"/chub_x")),
    planted("several cookies of a workspace", b"a=1; Path=/", b"b=2", b"a=3; HttpOnly", kept=True),
    planted("a session", b"session=evil"),
    planted("a session with attributes", b"session=evil; Path=/; HttpOnly; Max-Age=9"),
    planted("a workspace's cookie", b"codehub-workspace=evil"),
    planted("with the prefix", b"__Host-session=evil; Secure; Path=/"),
    planted("in another case", b"__hOST-sESSION=evil; Secure; Path=/", b"SESSION=evil"),
    planted("with spaces around the name", b"  session  =evil", b"\tsession\t=evil"),
    planted(
        "with spaces that only some browsers strip",
        b"\xa0session=evil",
        b"session\x85=evil",
        b"\xe2\x80\x8bsession=evil",
    ),
    planted("without a name, as its own value", b"=session=evil"),
    planted("without a name or an equals sign", b"session"),
    planted("an empty cookie", b"", b";", b"; session=evil"),
    planted("for the parent domain", b"a=1; Domain=localhost", b"a=1; domain = .localhost", b"a=1; DOMAIN"),
    Case(
        "an invalid cookie does not remove valid ones",
        get(),
        upstream_get(),
        b"HTTP/1.1 200 OK\r\nSet-Cookie: a=1\r\nset-cookie: b=2\r\nContent-Length: 2\r\n\r\nok",
        response=b"HTTP/1.1 200 OK\r\nSet-Cookie: a=1\r\nSet-cookie:session=evil\r\nset-cookie: b=2\r\n"
        b"Content-Length: 2\r\n\r\nok",
    ),
    Case(
        "the API receives the platform's cookies, and may set them",
        b"GET /api/v1/x HTTP/1.1\r\nHost: {platform}\r\nCookie: a=1; session=s\r\n\r\n",
        b"GET /api/v1/x HTTP/1.1\r\nhost: {platform}\r\ncookie: a=1; session=s\r\n"
        b"x-forwarded-for: 127.0.0.1\r\nx-forwarded-host: {platform}\r\nx-forwarded-proto: http\r\n\r\n",
        OK.replace(b"Content-Length", b"Set-Cookie: session=t\r\nContent-Length"),
        response=OK.replace(b"Content-Length", b"Set-Cookie: session=t\r\nContent-Length"),
        to_api=True,
    ),
)
