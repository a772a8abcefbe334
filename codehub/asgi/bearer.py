"""Bearer tokens of calls."""

from starlette.datastructures import Headers

from codehub.domain.token_format import bearer_token


def call_token(headers: Headers) -> str | None:
    """Return the Bearer token of a call, valid or not, or None if it has none.

    A call with one reads no cookie, so another site's page gains nothing by making a browser send it.
    """
    return bearer_token(headers.getlist("authorization"))
