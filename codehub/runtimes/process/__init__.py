"""The process runtime: a container is a sandboxed tree of local processes."""
