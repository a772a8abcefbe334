"""Links to the ports of a workspace, for its IDE to offer."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from codehub.domain.apps_host import apps_host, port_label


@dataclass(frozen=True)
class PortLinks:
    """Builder of the URLs under which browsers reach the ports of workspaces."""

    base_url: str
    apps_domain: str
    """Empty in the path mode. Without a port, the base URL's port applies."""

    def environment_variables(self, workspace_id: str) -> dict[str, str]:
        """Return the environment variable of code-server, with `{{port}}` in place of the port."""
        if not self.apps_domain:
            return {"VSCODE_PROXY_URI": "./proxy/{{port}}/"}
        base = urlsplit(self.base_url)
        host = f"{port_label('{{port}}', workspace_id)}.{apps_host(self.apps_domain, self.base_url)}"
        return {"VSCODE_PROXY_URI": f"{base.scheme}://{host}/"}
