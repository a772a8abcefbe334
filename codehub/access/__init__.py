"""Commands, files, ports and logs of running workspaces, for people and programs."""
