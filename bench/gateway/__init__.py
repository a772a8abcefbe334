"""Benchmarks of the gateway, beside configurable-http-proxy and nginx."""
