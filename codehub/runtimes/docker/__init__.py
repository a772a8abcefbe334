"""The docker runtime: a container is a container of a Docker Engine on this machine."""
