"""Measurements of the control plane, with providers that answer at once."""
