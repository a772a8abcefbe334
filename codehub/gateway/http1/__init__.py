"""HTTP/1.1 (RFC 9112): parses, checks and relays messages."""
