"""Roots of storage that an installation claims once (ADR 0020)."""

from enum import StrEnum


class StorageRoot(StrEnum):
    """Root of the volumes, or of the archive store."""

    VOLUMES = "volumes"
    ARCHIVES = "archives"
