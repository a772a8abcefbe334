"""The docker runtime: containers of a Docker Engine on this machine (ADR 0010)."""
