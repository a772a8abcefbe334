"""CodeHub: a self-hosted cloud development environment."""


def __getattr__(name: str) -> str:
    """The version is looked up when somebody asks: that takes longer than a keeper may to start."""
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("codehub")
    except PackageNotFoundError:  # a checkout that is run without being installed
        return "0+checkout"
