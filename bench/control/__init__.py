"""Benchmarks of the control plane, with providers that return at once."""
