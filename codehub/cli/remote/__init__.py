"""The commands that call a server. They use the SDK alone, and import nothing of the server."""
