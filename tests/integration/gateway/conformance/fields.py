"""Lengths, encodings and other fields with an effect (RFC 9112, 6; RFC 9110, 8.6 and 10.1.1)."""

from tests.integration.gateway.conformance.case import (
    OK,
    Case,
    ClientReceived,
    UpstreamResponse,
    get,
    post,
    refused,
    upstream_chunked,
    upstream_request,
)

CHUNKED = b"Transfer-Encoding: chunked"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

CASES = (
    Case(
        "a body with a length",
        post(b"Content-Length: 3", body=b"abc"),
        upstream_request(b"POST", b"content-length: 3", body=b"abc"),
    ),
    Case("a length of zero", post(b"Content-Length: 0"), upstream_request(b"POST", b"content-length: 0")),
    Case(
        "a GET may have a body",
        get(b"Content-Length: 3", body=b"abc"),
        upstream_request(b"GET", b"content-length: 3", body=b"abc"),
    ),
    Case(
        "leading zeros are decimal",
        post(b"Content-Length: 0010", body=b"0123456789"),
        upstream_request(b"POST", b"content-length: 0010", body=b"0123456789"),
    ),
    Case(
        "whitespace around a length",
        post(b"Content-Length: \t3 ", body=b"abc"),
        upstream_request(b"POST", b"content-length: 3", body=b"abc"),
    ),
    refused("an empty length", post(b"Content-Length:", body=b"abc")),
    refused("a length with a plus sign", post(b"Content-Length: +3", body=b"abc")),
    refused("a negative length", post(b"Content-Length: -3", body=b"abc")),
    refused("a negative zero", post(b"Content-Length: -0")),
    refused("a length in hex", post(b"Content-Length: 0x3", body=b"abc")),
    refused("a length with a fraction", post(b"Content-Length: 3.0", body=b"abc")),
    refused("a length with an exponent", post(b"Content-Length: 3e0", body=b"abc")),
    refused("a length with an underscore", post(b"Content-Length: 1_0", body=b"0123456789")),
    refused("a length with a space inside", post(b"Content-Length: 1 0", body=b"0123456789")),
    refused("a length in quotes", post(b'Content-Length: "3"', body=b"abc")),
    refused("a length in other digits", post("Content-Length: ٣".encode(), body=b"abc")),
    refused("a length of more than 64 bits", post(b"Content-Length: 18446744073709551619", body=b"abc")),
    refused("a length of many zeros", post(b"Content-Length: " + b"0" * 30 + b"3", body=b"abc")),
    refused("two lengths", post(b"Content-Length: 3", b"Content-Length: 4", body=b"abcd")),
    refused("the same length twice", post(b"Content-Length: 3", b"Content-Length: 3", body=b"abc")),
    refused("a list of lengths", post(b"Content-Length: 3, 4", body=b"abcd")),
    refused("a list of the same lengths", post(b"Content-Length: 3, 3", body=b"abc")),
    refused("a list of a length and nothing", post(b"Content-Length: 3,", body=b"abc")),
    Case(
        "a chunked body",
        post(CHUNKED, body=b"3\r\nabc\r\n0\r\n\r\n"),
        upstream_chunked(b"3\r\nabc\r\n0\r\n\r\n"),
    ),
    Case(
        "encodings are case-insensitive",
        post(b"transfer-encoding: CHUNKED", body=b"0\r\n\r\n"),
        upstream_chunked(b"0\r\n\r\n"),
    ),
    refused(
        "whitespace after an encoding, which some servers do not strip",
        post(CHUNKED + b" \t", body=b"0\r\n\r\n"),
    ),
    refused("an empty encoding", post(b"Transfer-Encoding:", body=b"0\r\n\r\n")),
    refused("chunked to HTTP/1.0", post(CHUNKED, version=b"1.0", body=b"0\r\n\r\n")),
    refused("an encoding that is not chunked", post(b"Transfer-Encoding: gzip", body=b"0\r\n\r\n")),
    refused("identity, which HTTP no longer has", post(b"Transfer-Encoding: identity", body=b"0\r\n\r\n")),
    refused("chunked after another encoding", post(b"Transfer-Encoding: gzip, chunked", body=b"0\r\n\r\n")),
    Case(
        "100 Continue comes from the upstream",
        (
            post(b"Content-Length: 3", b"Expect: 100-continue"),
            ClientReceived(CONTINUE),
            b"abc",
            ClientReceived(OK),
        ),
        upstream_request(b"POST", b"content-length: 3", b"expect: 100-continue", body=b"abc"),
        CONTINUE + OK,
        response=UpstreamResponse(OK, early=CONTINUE),
    ),
    refused("two expectations", post(b"Expect: 100-continue", b"Expect: other")),
    refused("two content types", post(b"Content-Type: a/b", b"Content-Type: c/d")),
    refused("two Origins", get(b"Origin: http://{host}", b"Origin: http://other.example")),
    refused("two credentials", get(b"Authorization: Basic YQ==", b"Authorization: Basic Yg==")),
    refused("two Sec-Fetch-Sites", get(b"Sec-Fetch-Site: none", b"Sec-Fetch-Site: cross-site")),
)
