"""Commands of images, with their placeholders filled in."""

import pytest

from codehub.domain.images import expand_command


def test_placeholders_are_filled_in_and_doubled_braces_are_braces() -> None:
    command = ("ide", "--at={socket}", "{home}/x", "{{literal}}", "{workspace_id}", "--title={name}")
    assert expand_command(command, socket="/s", home="/h", workspace_id="w", name="n") == (
        "ide",
        "--at=/s",
        "/h/x",
        "{literal}",
        "w",
        "--title=n",
    )


@pytest.mark.parametrize("name", ["--config=/x", "- -v", "{home}", "{0.__class__}", "\0\n", ""])
def test_a_name_stays_one_argument_and_never_becomes_an_option(name: str) -> None:
    whole, part = expand_command(
        ("{name}", "--title={name}"), socket="/s", home="/h", workspace_id="w", name=name
    )
    assert not whole.startswith("-") and whole.isprintable()
    assert part == f"--title={whole}"
    assert "/h" not in whole
