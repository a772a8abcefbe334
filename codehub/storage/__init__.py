"""Homes: the live volumes, the archive store, and the jobs that move a home between them."""
