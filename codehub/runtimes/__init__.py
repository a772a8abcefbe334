"""Runtimes, which run the containers of workspaces: one protocol, one package per runtime."""
