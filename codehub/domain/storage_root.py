"""Storage locations that an installation claims once (ADR 0020)."""

from enum import StrEnum


class StorageRoot(StrEnum):
    VOLUMES = "volumes"
    ARCHIVES = "archives"
