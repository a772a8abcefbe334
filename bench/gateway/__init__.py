"""The gateway beside configurable-http-proxy and nginx."""
