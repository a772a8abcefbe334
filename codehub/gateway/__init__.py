"""The gateway: the only public port, a reverse proxy for the API and all workspaces."""
