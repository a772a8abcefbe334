"""Benchmarks (`make bench`). Each compares CodeHub with a peer in one run on one machine."""
