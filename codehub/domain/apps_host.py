"""The host below which each workspace has an origin of its own (ADR 0005)."""

from urllib.parse import urlsplit


def default_apps_domain(base_url: str) -> str:
    """Return the apps domain of an installation on loopback that sets none."""
    return apps_host("localhost", base_url)


def apps_host(apps_domain: str, base_url: str) -> str:
    """Return `host[:port]`: the apps domain, with the platform's port unless it names its own.

    Workspaces are behind the same public port as the platform. An empty domain means path mode.
    """
    port = urlsplit(base_url).port
    return apps_domain if not apps_domain or port is None or ":" in apps_domain else f"{apps_domain}:{port}"


def port_label(port: int | str, workspace_id: str) -> str:
    """Return the first label of the host of a workspace's port."""
    return f"{port}--{workspace_id}"
