"""Live homes in a local directory: where they lie, who may change them, how much they hold."""
