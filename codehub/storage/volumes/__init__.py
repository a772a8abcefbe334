"""Live homes in a local directory: paths, locks, sizes and quotas."""
