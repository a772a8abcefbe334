"""`python -m codehub`."""

from codehub.cli.main import app

app(prog_name="codehub")
