"""Storage locations that an installation claims once (ADR 0020)."""

from enum import StrEnum


class Location(StrEnum):
    VOLUMES = "volumes"
    ARCHIVES = "archives"
