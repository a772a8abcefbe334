"""Passwords, and the duration and key of a lockout."""

import asyncio
from datetime import timedelta

import pytest
from argon2 import PasswordHasher, extract_parameters
from argon2.low_level import Type

from codehub.database import passwords
from codehub.database.accounts import check_password, check_username
from codehub.database.lockout import lock_after, lockout_key
from codehub.domain.problems import TooManyRequests, ValidationFailed


def test_the_fifth_failure_locks_for_30_s_and_the_time_doubles_up_to_30_min() -> None:
    assert [lock_after(n).total_seconds() for n in range(1, 14)] == [
        0, 0, 0, 0, 30, 60, 120, 240, 480, 960, 1800, 1800, 1800,
    ]  # fmt: skip
    assert lock_after(10**9) == timedelta(minutes=30)


@pytest.mark.parametrize(
    ("address", "key"),
    [
        ("192.0.2.7", "eve@192.0.2.7"),
        ("::ffff:192.0.2.7", "eve@192.0.2.7"),
        ("2001:db8::1", "eve@2001:db8::/64"),
        ("2001:db8::ffff:1", "eve@2001:db8::/64"),
        ("", "eve@unknown"),
        ("not an address", "eve@unknown"),
    ],
)
def test_the_key_contains_the_network(address: str, key: str) -> None:
    assert lockout_key("eve", address) == key


@pytest.mark.parametrize("name", ["a", "a.b_c-d", "x" * 64, "0"])
def test_good_usernames(name: str) -> None:
    assert check_username(name.upper()) == name


@pytest.mark.parametrize("name", ["", " ", "x" * 65, "a b", "a\0", "한글", "a/b", "a@b", "a\n"])
def test_bad_usernames(name: str) -> None:
    with pytest.raises(ValidationFailed):
        check_username(name)


@pytest.mark.parametrize("password", ["", "seven77", "x" * 1025])
def test_bad_passwords(password: str) -> None:
    with pytest.raises(ValidationFailed):
        check_password(password)


async def test_hashes_use_argon2id() -> None:
    hashed = await passwords.hash_password("a good password")
    assert extract_parameters(hashed).type is Type.ID
    assert await passwords.verify_password("a good password", hashed)
    assert not await passwords.verify_password("a bad password", hashed)
    assert not await passwords.verify_password("a good password", "not a hash")


async def test_an_unknown_name_takes_the_same_work(monkeypatch: pytest.MonkeyPatch) -> None:
    assert extract_parameters(passwords.DUMMY_HASH) == extract_parameters(PasswordHasher().hash("x"))
    seen: list[str] = []
    matches = passwords._matches

    def spy(password: str, password_hash: str) -> bool:
        seen.append(password_hash)
        return matches(password, password_hash)

    monkeypatch.setattr(passwords, "_matches", spy)
    assert not await passwords.verify_password("whatever it is", None)
    assert seen == [passwords.DUMMY_HASH]


async def test_too_many_waiting_verifications_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passwords, "MAX_WAITING", 2)
    outcomes = await asyncio.gather(
        *(passwords.verify_password("x" * 8, None) for _ in range(5)), return_exceptions=True
    )
    assert sum(isinstance(outcome, TooManyRequests) for outcome in outcomes) == 3
    assert not await passwords.verify_password("x" * 8, None)
