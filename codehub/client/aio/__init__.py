"""The asynchronous client. `codehub.client.sync` is generated from it, but for `io` and `transport`."""
