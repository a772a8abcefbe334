"""Measurements, each beside a peer in one run on one machine: `make bench`."""
