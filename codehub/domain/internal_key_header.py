"""Header by which the API recognises the gateway over TCP."""

from typing import Final

INTERNAL_KEY: Final = "x-codehub-internal-key"
"""Carries the shared key. The gateway removes this header from clients' requests."""
