"""Files, locks and processes of the operating system. Uses the standard library only."""
