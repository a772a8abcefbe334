"""The front door: the only public port, in front of the API and of every workspace."""
