"""Commands that a request can ask for."""

import pytest

from codehub.access.execs import NewCommand
from codehub.domain.problems import ValidationFailed
from codehub.settings import Settings


@pytest.mark.parametrize("command", ["", " \n", [""], ["", "x"]])
def test_an_empty_command_is_rejected(command: str | list[str]) -> None:
    with pytest.raises(ValidationFailed, match=r"^command: "):
        NewCommand(command=command).to_request(Settings())


def test_a_text_is_run_by_a_login_shell() -> None:
    assert NewCommand(command="make test").to_request(Settings()).command == ["/bin/sh", "-lc", "make test"]
