"""How the parts of CodeHub recognise each other over TCP."""

from typing import Final

INTERNAL_KEY: Final = "x-codehub-internal-key"
"""The header that carries the shared key. The gateway removes it from what clients send."""
