"""The credentials file, and how a client finds its server."""

import json
import os
import stat
import threading
from pathlib import Path

import pytest

from codehub.client import ConfigurationError, credentials
from codehub.client.credentials import Credentials, SavedServer, find_server, load, locked, save
from codehub.client.requests import normalized_url

TOKEN = "chub_" + "a" * 40
OTHER = "chub_" + "b" * 40
ONE = SavedServer("one.example", "https://one.example", TOKEN, "alice")
TWO = SavedServer("two", "http://localhost:8080", OTHER)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "config" / "credentials.json"


def test_the_file_is_only_for_its_owner_and_keeps_several_servers(path: Path) -> None:
    before = os.umask(0)
    try:
        save(path, Credentials().with_server(ONE).with_server(TWO))
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    loaded = load(path)
    assert loaded == Credentials({"one.example": ONE, "two": TWO}, "two")
    assert loaded.named("https://one.example/").token == TOKEN
    assert loaded.without("two").current == "one.example"
    assert loaded.with_current("one.example").current == "one.example"
    assert TOKEN not in repr(loaded)
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_a_link_stays_a_link(path: Path, tmp_path: Path) -> None:
    real = tmp_path / "dotfiles.json"
    save(real, Credentials())
    path.parent.mkdir()
    path.symlink_to(real)
    save(path, Credentials().with_server(ONE))
    assert path.is_symlink() and load(real).current == "one.example"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_a_file_that_others_can_read_is_rejected(path: Path, mode: int) -> None:
    save(path, Credentials().with_server(ONE))
    path.chmod(mode)
    with pytest.raises(ConfigurationError, match="chmod 600"):
        load(path)


@pytest.mark.parametrize(
    "content",
    ["x", "[]", '{"servers": 1}', '{"servers": {"a": {}}}', '{"servers": {"a": 1}}', "\x80", "[" * 99_999],
)  # fmt: skip
def test_a_damaged_file_is_a_clear_error(path: Path, content: str) -> None:
    path.parent.mkdir()
    path.write_text(content, encoding="latin-1")
    path.chmod(0o600)
    with pytest.raises(ConfigurationError, match="codehub login"):
        load(path)


def test_a_failed_write_keeps_the_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(path, Credentials().with_server(ONE))

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(credentials.os, "fsync", fail)
    with pytest.raises(ConfigurationError, match="No space left"):
        save(path, Credentials())
    assert load(path).current == "one.example"
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_logins_at_the_same_time_keep_both(path: Path) -> None:
    def login(server: SavedServer) -> None:
        with locked(path):
            save(path, load(path).with_server(server))

    names = [SavedServer(str(n), f"https://{n}.example", TOKEN) for n in range(16)]
    threads = [threading.Thread(target=login, args=(each,)) for each in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(load(path).servers) == {str(n) for n in range(16)}


def environment(path: Path, **values: str) -> dict[str, str]:
    return {"CODEHUB_CREDENTIALS_FILE": str(path), "HOME": str(path.parent), **values}


def test_what_is_given_comes_first_then_the_environment_then_the_file(path: Path) -> None:
    save(path, Credentials().with_server(ONE).with_server(TWO))
    empty, full = environment(path), environment(path, CODEHUB_URL="https://env.example", CODEHUB_TOKEN=OTHER)
    assert find_server("https://given.example", TOKEN, environment=full).url == "https://given.example"
    assert find_server(environment=full).url == "https://env.example"
    assert find_server(environment=empty).url == TWO.url
    assert find_server(name="one.example", environment=full).token == TOKEN
    assert find_server("https://one.example:443/api/v1", environment=empty).token == TOKEN
    assert TOKEN not in repr(find_server(name="one.example", environment=full))


def test_a_token_is_never_used_with_another_address(path: Path) -> None:
    save(path, Credentials().with_server(ONE))
    environment_of_other = environment(path, CODEHUB_URL="https://env.example", CODEHUB_TOKEN=OTHER)
    assert find_server("https://one.example", environment=environment_of_other).token == TOKEN
    with pytest.raises(ConfigurationError, match=r"no token for https://new\.example"):
        find_server("https://new.example", environment=environment_of_other)
    with pytest.raises(ConfigurationError, match=r"no token for http://one\.example"):
        find_server("http://one.example", environment=environment(path))
    with pytest.raises(ConfigurationError, match="no address"):
        find_server(environment=environment(path, CODEHUB_TOKEN=OTHER))
    with pytest.raises(ConfigurationError, match=r"no token for https://env\.example"):
        find_server(environment=environment(path, CODEHUB_URL="https://env.example"))


def test_without_a_server_it_says_what_to_do(path: Path) -> None:
    with pytest.raises(ConfigurationError, match="codehub login"):
        find_server(environment=environment(path))
    with pytest.raises(ConfigurationError, match="Known: none"):
        find_server(name="other", environment=environment(path))


@pytest.mark.parametrize("token", ["", "a b", "chub_ü", "a\r\nHost: evil"])
def test_a_token_that_is_none_is_rejected(token: str) -> None:
    with pytest.raises(ConfigurationError):
        find_server("https://one.example", token)


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("https://Codehub.Example/", "https://codehub.example"),
        ("http://localhost:8080/api/v1/", "http://localhost:8080"),
        ("https://h:443", "https://h"),
        ("http://[::1]:80/", "http://[::1]"),
    ],
)
def test_addresses_have_one_form(text: str, url: str) -> None:
    assert normalized_url(text) == url


@pytest.mark.parametrize(
    "text", ["", "localhost:8080", "ftp://h", "https://", "https://u:p@h", "https://h/?a=b", "https://h/below",
             "https://h:x", "http://[::1"]
)  # fmt: skip
def test_other_addresses_are_rejected(text: str) -> None:
    with pytest.raises(ConfigurationError):
        normalized_url(text)


def test_the_file_is_saved_as_json(path: Path) -> None:
    save(path, Credentials().with_server(ONE))
    assert json.loads(path.read_text())["servers"]["one.example"]["username"] == "alice"
