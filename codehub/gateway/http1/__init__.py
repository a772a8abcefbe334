"""HTTP/1.1 (RFC 9112): parsing, checking and relaying of messages (ADR 0029)."""
