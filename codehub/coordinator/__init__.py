"""The coordinator: elects one leader, which observes workspaces and carries out decisions."""
