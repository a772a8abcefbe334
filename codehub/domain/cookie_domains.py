"""Domains for which the pages of a host may set cookies."""

import re
from typing import Final

_ADDRESS = re.compile(r"[0-9.]+|.*:.*")
_PUBLIC_SUFFIX_LABELS: Final = frozenset(
    ["ac", "co", "com", "edu", "go", "gov", "ne", "net", "or", "org", "re"]
)
"""Second labels below which some country codes register names, as in `example.co.kr`."""


def parent_domains(host: str) -> list[str]:
    """Return the domains that a cookie sent to this host may be set for, the host first.

    The list may contain public suffixes such as `co.kr`, for which browsers refuse cookies.
    """
    if _ADDRESS.fullmatch(host):
        return []
    labels = host.split(".")
    return [".".join(labels[start:]) for start in range(len(labels) - 1)]


def shared_domain(one: str, other: str) -> str | None:
    """Return the domain for which pages of both hosts may set cookies, or None."""
    shared = [domain for domain in parent_domains(one) if domain in parent_domains(other)]
    return next((domain for domain in shared if not _is_public_suffix(domain)), None)


def _is_public_suffix(domain: str) -> bool:
    """Return whether the domain looks like a public suffix, below which names have different owners."""
    first, _, top = domain.partition(".")
    return "." not in top and len(top) == 2 and first in _PUBLIC_SUFFIX_LABELS
