"""Paths that CodeHub reserves on the origins of workspaces, and below their entries on the platform."""

from typing import Final

RESERVED_PREFIX: Final = "/.codehub/"
BEGIN_PATH: Final = f"{RESERVED_PREFIX}begin"
"""On a workspace's origin: gives the browser a nonce, and sends it to ENTER_PATH on the platform."""
ENTER_PATH: Final = f"{RESERVED_PREFIX}enter"
"""On the platform: issues a ticket. On a workspace's origin: takes the ticket."""
FORM_PATH: Final = f"{RESERVED_PREFIX}do"
"""On the platform: takes the forms of the gateway's pages."""
