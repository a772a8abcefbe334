"""HTTP/1.1: parsed, checked, and relayed to the API and to workspaces."""
