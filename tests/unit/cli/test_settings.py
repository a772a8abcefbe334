"""Settings out of range are refused by name. The cases are generated from the settings."""

import math
from collections.abc import Iterator

import annotated_types
import pytest

from codehub import settings
from codehub.settings import SettingsError

STEP = 1


def numeric_settings() -> list[str]:
    fields = settings.Settings.model_fields
    return [name for name, field in fields.items() if field.annotation in (int, float)]


def beyond(name: str) -> Iterator[float]:
    """Return a value just outside of each bound."""
    for bound in settings.Settings.model_fields[name].metadata:
        match bound:
            case annotated_types.Ge(ge=least):
                yield least - STEP
            case annotated_types.Gt(gt=least):
                yield least
            case annotated_types.Le(le=most):
                yield most + STEP
            case annotated_types.Lt(lt=most):
                yield most


def refused(monkeypatch: pytest.MonkeyPatch, name: str, value: object) -> str:
    monkeypatch.setenv(name.upper(), str(value))
    with pytest.raises(SettingsError) as refusal:
        settings.load()
    return str(refusal.value)


@pytest.mark.parametrize("name", numeric_settings())
def test_a_number_out_of_range_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    values = list(beyond(name))
    assert len(values) == 2, "every number has a lower and an upper bound"
    for value in values:
        assert refused(monkeypatch, name, value).startswith(f"{name.upper()}: must be ")


@pytest.mark.parametrize("name", numeric_settings())
@pytest.mark.parametrize("value", ["soon", "", math.nan, math.inf, "1e999"])
def test_a_value_that_is_not_a_number_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, name: str, value: object
) -> None:
    message = refused(monkeypatch, name, value)
    assert message.startswith(f"{name.upper()}: must be ")
    assert "\n" not in message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RUNTIME", "vmware"),
        ("DOCKER_NETWORK_POOL", "10.222.0.0/30"),
        ("DOCKER_NETWORK_POOL", "my network"),
        ("WORKSPACE_ALLOW_EGRESS", "10.1.0.0/16, everything"),
        ("LOG_LEVEL", "loud"),
        ("INSECURE_PROCESS_RUNTIME", "perhaps"),
        ("PUBLIC_BASE_URL", "codehub.example.com"),
        ("PUBLIC_BASE_URL", "https://codehub.example.com/path"),
        ("APPS_DOMAIN", "*.example.com"),
        ("DATABASE_URL", "here"),
        ("DATABASE_URL", "mysql://user:s3cret@host/database"),
        ("DATABASE_URL", "postgresql://user:s3cret@host:port/database"),
        ("REDIS_URL", "http://user:s3cret@host"),
        ("REDIS_URL", "redis://user:s3cret@host:port"),
        ("ARCHIVE_URL", "ftp://host/directory"),
        ("INTERNAL_LISTEN", "9100"),
        ("INTERNAL_LISTEN", "tcp:9100"),
        ("INTERNAL_LISTEN", "tcp:127.0.0.1:0"),
        ("INTERNAL_LISTEN", "unix:relative.sock"),
    ],
)
def test_an_invalid_value_is_refused_by_name_without_repeating_a_password(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    message = refused(monkeypatch, name, value)
    assert message.startswith(f"{name}: must be ")
    assert "s3cret" not in message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DATABASE_URL", "postgresql://user:p%40ss#/w@/database?host=/run/pg"),
        ("DATABASE_URL", "postgres://[::1]:5432/database"),
        ("REDIS_URL", "unix:///run/redis.sock"),
        ("REDIS_URL", "rediss://:secret@host:6380/1"),
        ("ARCHIVE_URL", "file:///archives"),
        ("ARCHIVE_URL", "s3://bucket/prefix"),
        ("INTERNAL_LISTEN", "tcp:[::1]:9100"),
        ("INTERNAL_LISTEN", "unix:/run/codehub/api.sock"),
    ],
)
def test_every_form_of_address_is_accepted(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    assert getattr(settings.load(), name.lower()) == value


def test_every_invalid_setting_gets_its_own_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNTIME", "vmware")
    lines = refused(monkeypatch, "PORT", 0).splitlines()
    assert sorted(line.split(":")[0] for line in lines) == ["PORT", "RUNTIME"]


@pytest.mark.parametrize("name", ["images_file", "tls_cert_file", "tls_key_file"])
def test_an_empty_file_name_counts_as_unset(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name.upper(), "")
    assert getattr(settings.load(), name) is None


PUBLIC = {"apps_domain": "apps.example.net"}


@pytest.mark.parametrize("url", ["http://hub.example.org", "http://192.168.0.7:8080", "http://hub"])
def test_plain_http_on_a_public_name_is_refused_unless_it_is_accepted(url: str) -> None:
    with pytest.raises(SettingsError) as refusal:
        settings.load(public_base_url=url, **PUBLIC)
    message = str(refusal.value)
    assert message.startswith(f"PUBLIC_BASE_URL is {url}") and "\n" not in message
    assert "ALLOW_INSECURE_HTTP=1" in message and "TLS_CERT_FILE" in message
    assert settings.load(public_base_url=url, allow_insecure_http=True, **PUBLIC).insecure_http


def test_plain_http_of_workspaces_on_a_public_name_needs_acceptance_too() -> None:
    """Their cookies and traffic are exposed like CodeHub's own."""
    with pytest.raises(SettingsError) as refusal:
        settings.load(public_base_url="http://localhost:8080", **PUBLIC)
    message = str(refusal.value)
    assert message.startswith("APPS_DOMAIN is apps.example.net") and "ALLOW_INSECURE_HTTP=1" in message


@pytest.mark.parametrize("apps", [None, "", "localhost", "apps.localhost:8080"])
@pytest.mark.parametrize("url", ["https://hub.example.org", "http://localhost:8080", "http://127.0.0.1", ""])
def test_https_and_loopback_need_no_acceptance(url: str, apps: str | None) -> None:
    """A proxy that terminates TLS counts as https, the scheme of PUBLIC_BASE_URL."""
    domain = "apps.example.net" if url.startswith("https:") else apps
    for accepted in (False, True):
        loaded = settings.load(public_base_url=url, allow_insecure_http=accepted, apps_domain=domain)
        assert not loaded.insecure_http
