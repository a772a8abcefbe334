"""CodeHub: a self-hosted cloud development environment."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("codehub")
except PackageNotFoundError:  # a checkout that is run without being installed
    __version__ = "0+checkout"
