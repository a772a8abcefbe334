"""Keys of archives and homes: what is built is parsed, and nothing else."""

import pytest

from codehub.domain.archive_keys import (
    archive_key,
    archive_op_id_of,
    is_archive_key,
    meta_key,
    parse_archive_key,
)
from codehub.domain.home_keys import home_store_key, parse_home_store_key

LONGEST = "a" * 64


def test_an_archive_key_survives_a_round_trip() -> None:
    key = archive_key(LONGEST, "op_1-A")
    assert parse_archive_key(key) == (LONGEST, "op_1-A")
    assert archive_op_id_of(key) == "op_1-A"
    assert is_archive_key(key)


def test_the_meta_of_an_archive_is_beside_its_object() -> None:
    assert archive_key("ws", "op") == "ws/op/home.tar.zst"
    assert meta_key("ws/op/home.tar.zst") == "ws/op/.meta"


@pytest.mark.parametrize(
    "key",
    [
        "", "ws", "ws/op", "a/b/c/d", "ws/op/.meta", "ws/../home.tar.zst", "ws//home.tar.zst",
        "/ws/op/home.tar.zst", "ws/op/home.tar.zst\n", "ws/op/home.tar.zst#1", f"{LONGEST}a/op/home.tar.zst",
    ],
)  # fmt: skip
def test_any_other_text_is_not_an_archive_key(key: str) -> None:
    assert not is_archive_key(key)
    with pytest.raises(ValueError, match="is not an archive_key"):
        archive_op_id_of(key)


def test_a_home_store_key_survives_a_round_trip() -> None:
    assert home_store_key("u1", "w1") == "users/u1/workspaces/w1/home"
    assert parse_home_store_key(home_store_key("u1", "w1")) == ("u1", "w1")


@pytest.mark.parametrize(
    "key", ["", "users/u1/workspaces/w1", "users/../workspaces/w1/home", "users/u1/workspaces/w1/home/"]
)
def test_any_other_text_is_not_a_home_store_key(key: str) -> None:
    with pytest.raises(ValueError, match="is not a home_store_key"):
        parse_home_store_key(key)
