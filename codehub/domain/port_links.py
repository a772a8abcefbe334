"""Links to the ports of a workspace, for its IDE to offer."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit


@dataclass(frozen=True)
class PortLinks:
    """Where a browser finds the ports of workspaces."""

    base_url: str
    apps_domain: str
    """Empty for the path mode; without a port it has the base URL's."""

    def variables(self, workspace_id: str) -> dict[str, str]:
        """What code-server reads: a template in which `{{port}}` stands for the port."""
        if not self.apps_domain:
            return {"VSCODE_PROXY_URI": "./proxy/{{port}}/"}
        base = urlsplit(self.base_url)
        port = "" if ":" in self.apps_domain or base.port is None else f":{base.port}"
        host = f"{{{{port}}}}--{workspace_id}.{self.apps_domain}{port}"
        return {"VSCODE_PROXY_URI": f"{base.scheme}://{host}/"}
