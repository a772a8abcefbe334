"""Cookies and tokens: the platform's never reach a workspace, and a workspace cannot plant one."""

from base64 import b64encode

from tests.integration.gateway.conformance.case import OK, VIA, Case, Mode, get, saw_get

TOKEN = b"chub_" + b"0123456789" * 4
START = b"GET {base}/x HTTP/1.1\r\nHost: {host}\r\n"
SEEN = b"GET /x HTTP/1.1\r\nhost: {host}\r\n"


def sent(name: str, *cookies: bytes, left: bytes = b"", mode: Mode = Mode.BOTH) -> Case:
    """Lines of Cookie, and the one line that the workspace sees."""
    lines = b"".join(b"Cookie: %b\r\n" % cookie for cookie in cookies)
    seen = SEEN + (b"cookie: %b\r\n" % left if left else b"") + VIA
    return Case(name, START + lines + b"\r\n", seen, mode=mode)


def second_session(name: str, cookie: bytes, left: bytes = b"") -> tuple[Case, Case]:
    """A session beside the one that counts: refused on the platform's origin, removed on a workspace's."""
    sends = START + b"Cookie: %b\r\n\r\n" % cookie
    refusal = Case(f"{name}, on the platform's origin", sends, gets=400, mode=Mode.PATH)
    return sent(name, cookie, left=left, mode=Mode.ORIGIN), refusal


def token(name: str, value: bytes, *, passes: bool = False) -> Case:
    seen = saw_get(b"authorization: " + value) if passes else saw_get()
    return Case(name, get(b"Authorization: " + value), seen)


def planted(name: str, *cookies: bytes, passes: bool = False) -> Case:
    lines = b"".join(b"Set-Cookie: %b\r\n" % cookie for cookie in cookies)
    answer = OK.replace(b"Content-Length", lines + b"Content-Length")
    return Case(name, get(), saw_get(), answer if passes else OK, answer=answer)


CASES = (
    sent("among others", b"a=1; {who}; b=2", left=b"a=1; b=2"),
    sent("in a line of its own", b"a=1", b"{who}", b"b=2", left=b"a=1; b=2"),
    sent("without spaces", b"a=1;{who};b=2", left=b"a=1; b=2"),
    sent("with too many", b"a=1 ;  {who} ;; b=2;", left=b"a=1; b=2"),
    *second_session("every name of the platform", b"session=s; codehub-workspace=w; {who}"),
    sent("names with the prefix", b"{who}; __Host-session=s; __Host-codehub-workspace=w; a=1", left=b"a=1"),
    sent(
        "names in another case", b"{who}; SESSION=s; __HOST-Session=s; CodeHub-Workspace=w; a=1", left=b"a=1"
    ),
    *second_session("a name without a value", b"session; {who}; a=1", left=b"a=1"),
    *second_session("whitespace around a name", b"session =s; \tsession\t=s; a=1; {who}", left=b"a=1"),
    sent("whitespace that is not ASCII", b"{who}; \xa0session=s; session\x85=s; a=1", left=b"a=1"),
    *second_session("in quotes", b'a="x; session=s; y"; {who}', left=b'a="x; y"'),
    sent("a quote that does not end", b'a="; {who}; b=2', left=b'a="; b=2'),
    sent(
        "a name that only contains one", b"{who}; my-session=1; sessions=2", left=b"my-session=1; sessions=2"
    ),
    sent("a value that looks like one", b"{who}; a=session=1", left=b"a=session=1"),
    sent("an empty name", b"{who}; =1; a=2", left=b"=1; a=2"),
    sent("a huge cookie", b"a=" + b"1" * 12_000 + b"; {who}", left=b"a=" + b"1" * 12_000),
    sent("very many cookies", b"a=1; " * 2000 + b"{who}", left=b"; ".join([b"a=1"] * 2000)),
    Case("too huge a cookie", START + b"Cookie: a=%b; {who}\r\n\r\n" % (b"1" * 12_500), gets=431),
    Case("too many cookies", START + b"Cookie: %b{who}\r\n\r\n" % (b"a=1; " * 3000), gets=431),
    Case("too many in several lines", START + b"Cookie: %b\r\n" % (b"1" * 5000) * 3 + b"\r\n", gets=431),
    Case("no cookie at all", b"GET {base}/x HTTP/1.1\r\nHost: {host}\r\n\r\n", gets=401),
    Case("a cookie of nobody", START + b"Cookie: session=x; codehub-workspace=y\r\n\r\n", gets=401),
    token("a token", b"Bearer chub_abc"),
    token("a token under another scheme", b"token chub_abc"),
    token("a token without a scheme", b"chub_abc"),
    token("a token after a tab", b"Bearer\tchub_abc"),
    token("a token in a parameter", b'Token token="chub_abc"'),
    token("credentials of others", b"Bearer ghp_abc", passes=True),
    token("a name and a password", b"Basic dXNlcjpwdw==", passes=True),
    Case("a token as an API key", get(b"X-Api-Key: " + TOKEN), saw_get()),
    Case("a token as a password", get(b"Authorization: Basic " + b64encode(b"me:" + TOKEN)), saw_get()),
    Case("a token as a user name", get(b"Authorization: Basic " + b64encode(TOKEN + b":")), saw_get()),
    sent("a token in a cookie", b"a=1; t=" + TOKEN + b"; {who}", left=b"a=1"),
    Case("a token in the query", get(target=b"{base}/x?t=" + TOKEN), gets=400),
    Case("a token in the path", get(target=b"{base}/" + TOKEN), gets=400),
    Case("a token with encoded characters", get(target=b"{base}/x?t=%63" + TOKEN[1:]), gets=400),
    Case("a file that is named like a token", get(target=b"{base}/chub_x"), saw_get(target=b"/chub_x")),
    planted("several cookies of a workspace", b"a=1; Path=/", b"b=2", b"a=3; HttpOnly", passes=True),
    planted("a session", b"session=evil"),
    planted("a session with attributes", b"session=evil; Path=/; HttpOnly; Max-Age=9"),
    planted("a workspace's cookie", b"codehub-workspace=evil"),
    planted("with the prefix", b"__Host-session=evil; Secure; Path=/"),
    planted("in another case", b"__hOST-sESSION=evil; Secure; Path=/", b"SESSION=evil"),
    planted("with spaces around the name", b"  session  =evil", b"\tsession\t=evil"),
    planted(
        "with spaces that only some strip",
        b"\xa0session=evil",
        b"session\x85=evil",
        b"\xe2\x80\x8bsession=evil",
    ),
    planted("without a name, as its own value", b"=session=evil"),
    planted("without a name and without a sign", b"session"),
    planted("an empty cookie", b"", b";", b"; session=evil"),
    planted("for the domain above", b"a=1; Domain=localhost", b"a=1; domain = .localhost", b"a=1; DOMAIN"),
    Case(
        "one bad cookie does not take the good ones along",
        get(),
        saw_get(),
        b"HTTP/1.1 200 OK\r\nSet-Cookie: a=1\r\nset-cookie: b=2\r\nContent-Length: 2\r\n\r\nok",
        answer=b"HTTP/1.1 200 OK\r\nSet-Cookie: a=1\r\nSet-cookie:session=evil\r\nset-cookie: b=2\r\n"
        b"Content-Length: 2\r\n\r\nok",
    ),
    Case(
        "the API gets the platform's cookies, and may set them",
        b"GET /api/v1/x HTTP/1.1\r\nHost: {platform}\r\nCookie: a=1; session=s\r\n\r\n",
        b"GET /api/v1/x HTTP/1.1\r\nhost: {platform}\r\ncookie: a=1; session=s\r\n"
        b"x-forwarded-for: 127.0.0.1\r\nx-forwarded-host: {platform}\r\nx-forwarded-proto: http\r\n\r\n",
        OK.replace(b"Content-Length", b"Set-Cookie: session=t\r\nContent-Length"),
        answer=OK.replace(b"Content-Length", b"Set-Cookie: session=t\r\nContent-Length"),
        by_api=True,
    ),
)
