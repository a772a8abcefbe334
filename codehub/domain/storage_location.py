"""What an installation claims once: the root of its volumes and its archive store."""

from enum import StrEnum


class Location(StrEnum):
    VOLUMES = "volumes"
    ARCHIVES = "archives"
