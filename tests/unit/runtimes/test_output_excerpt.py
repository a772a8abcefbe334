"""The excerpt of a workspace's output for a message that is stored and shown."""

from __future__ import annotations

import pytest

from codehub.runtimes.base import output_excerpt


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("no licence\n\tfound", "no licence\n\tfound"),
        ("caf\u00e9 \u2713", "caf\u00e9 \u2713"),
        ("core\0dump", "core\ufffddump"),
        ("\x1b[31mred\x7f\x9b", "\ufffd[31mred\ufffd\ufffd"),
        ("half a pair \ud800", "half a pair \ufffd"),
    ],
)
def test_control_characters_are_replaced(output: str, expected: str) -> None:
    assert output_excerpt(output) == expected


def test_long_output_is_cut_to_its_end() -> None:
    excerpt = output_excerpt("x" * 1_000_000 + "the cause")
    assert len(excerpt) <= 2000 and excerpt.endswith("the cause")


def test_a_path_that_would_be_cut_is_left_out() -> None:
    """It could not be recognised as a path of the host."""
    output = "/var/lib/codehub/home " + "x " * 995
    assert len(output) > 2000
    shown = output_excerpt(output)
    assert shown.startswith("x ") and "codehub" not in shown
    assert output_excerpt("short /var/lib") == "short /var/lib"
    assert output_excerpt(" " * 3000) == " " * 2000
