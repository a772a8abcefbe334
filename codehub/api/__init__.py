"""The HTTP API and the dashboard's files."""
