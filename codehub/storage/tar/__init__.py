"""A home as a tar stream: written, compressed, checked and unpacked."""
