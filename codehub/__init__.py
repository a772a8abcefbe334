"""CodeHub: a self-hosted cloud development environment."""


def __getattr__(name: str) -> str:
    """Look up the version on first use, since importlib.metadata delays the start of keepers."""
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("codehub")
    except PackageNotFoundError:  # a checkout that is not installed
        return "0+checkout"
