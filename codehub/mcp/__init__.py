"""MCP server: workspaces for agents, on the SDK alone.

It needs the package `mcp`, which the extra `codehub[mcp]` installs.
"""
