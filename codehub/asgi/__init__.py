"""Middleware and error responses that the HTTP services share."""
