"""Any name of a workspace as an argument and as a host name."""

import re

import pytest

from codehub.domain.workspace_names import as_argument, as_host_name

ID = "01k0abcdefghjkmnpqrstvwxyz"
HOSTILE = [
    "",
    " ",
    "-",
    "--bind-addr=0.0.0.0:80",
    "- - --config=/etc/shadow",
    "\u00a0--auth=password",
    "$(reboot)`reboot`;reboot",
    "a\nb\r\nc\td",
    "nul\0nul",
    "\x1b]0;title\x07",
    "line\u2028paragraph\u2029next\x85end",
    "lone \ud800 surrogate",
    "x" * 5000,
    "-" * 5000,
    "é" * 5000,
    "{home} {{socket}} %s ${HOME}",
    "../../etc/passwd",
    "'\"\\",
    "한글",
    "😀",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_as_argument_is_one_line_and_no_option(name: str) -> None:
    argument = as_argument(name, ID)
    assert argument and len(argument) <= 100
    assert argument == argument.strip() and not argument.startswith("-")
    assert not re.search(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]", argument)
    argument.encode()


@pytest.mark.parametrize("name", HOSTILE)
def test_every_name_makes_a_valid_host_name(name: str) -> None:
    assert re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", as_host_name(name, ID))


@pytest.mark.parametrize("name", ["my project", "한글 프로젝트", "naïve", "50% {done}"])
def test_an_ordinary_name_stays_as_it_is(name: str) -> None:
    assert as_argument(name, ID) == name


@pytest.mark.parametrize(
    ("name", "host"),
    [
        ("my-project", "my-project"),
        ("My Project!", "my-project"),
        ("Crème brûlée", "creme-brulee"),
        ("결제 API v2", "api-v2"),
        ("한글", ID),
        ("-", ID),
        ("a" * 62 + " b", "a" * 62),
    ],
)
def test_the_host_name_contains_the_name(name: str, host: str) -> None:
    assert as_host_name(name, ID) == host
