"""Codec of archives: a home as a compressed, checked tar stream."""
