"""Commands, files and logs of running workspaces, for people and programs."""
