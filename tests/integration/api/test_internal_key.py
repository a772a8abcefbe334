"""The API on a TCP port answers only its gateways."""

import asyncio
import re
from collections.abc import AsyncIterator

import httpx
import pytest

from codehub.api.server import listen, make_server
from codehub.domain.internal_key_header import INTERNAL_KEY
from codehub.settings import Settings, SettingsError, load
from tests.integration.api.conftest import Api
from tests.waiting import PATIENCE

KEY = "0123456789abcdef" * 2


@pytest.fixture
async def address(api: Api, settings: Settings) -> AsyncIterator[str]:
    """The URL of an API that listens on TCP."""
    listening = listen("tcp:127.0.0.1:0")
    port = listening.getsockname()[1]
    over_tcp = {"api_listen": f"tcp:127.0.0.1:{port}", "internal_key": KEY}
    server = make_server(settings.model_copy(update=over_tcp))
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    async with asyncio.timeout(PATIENCE):
        await serving
    listening.close()


async def test_a_request_without_the_key_is_refused(address: str) -> None:
    async with httpx.AsyncClient(base_url=address, timeout=PATIENCE) as client:
        for headers in (
            [],
            [(INTERNAL_KEY, "")],
            [(INTERNAL_KEY, KEY[:-1])],
            [(INTERNAL_KEY, f"{KEY}x")],
            [(INTERNAL_KEY, KEY), (INTERNAL_KEY, "another")],
            [("x-forwarded-for", "192.0.2.7")],
        ):
            for path in ("/api/v1/session", "/readyz", "/metrics", "/", "/healthz/"):
                answer = await client.get(path, headers=headers)
                assert answer.status_code == 403, (headers, path)
                assert answer.json()["error"]["code"] == "FORBIDDEN"
                assert KEY not in answer.text
        assert (await client.get("/healthz")).status_code == 200


async def test_a_request_with_the_key_is_answered(address: str) -> None:
    async with httpx.AsyncClient(base_url=address, headers={INTERNAL_KEY: KEY}, timeout=PATIENCE) as client:
        assert (await client.get("/api/v1/session")).status_code == 401


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_an_address_in_use_is_named(host: str) -> None:
    try:
        listening = listen(f"tcp:{host}:0")
    except OSError as error:
        pytest.skip(f"this machine has no such address ({error})")
    with listening:
        address = f"tcp:{host}:{listening.getsockname()[1]}"
        with pytest.raises(
            OSError, match=rf"API_LISTEN {re.escape(address)} cannot be used \(Address already"
        ):
            listen(address)


@pytest.mark.parametrize("name", ["API_LISTEN", "API_UPSTREAM"])
def test_an_address_over_tcp_needs_a_key(name: str) -> None:
    with pytest.raises(SettingsError, match=rf"{name} is tcp:api:8000, .* set INTERNAL_KEY"):
        load().internal_key_for(name, "tcp:api:8000")
    assert load(internal_key=KEY).internal_key_for(name, "tcp:api:8000") == KEY
    assert load(internal_key=KEY).internal_key_for(name, "unix:/run/api.sock") is None


@pytest.mark.parametrize("key", ["short", KEY[:-1], f"{KEY} and a space", f"{KEY}\n"])
def test_a_key_that_is_too_short_or_does_not_fit_a_header_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(SettingsError, match="INTERNAL_KEY: must have at least 32 characters") as refusal:
        load(internal_key=key)
    assert key not in str(refusal.value)


@pytest.mark.parametrize(
    "address", ["tcp:api:8000", "tcp:api.codehub.svc:1", "tcp:127.0.0.1:65535", "tcp:[::1]:80", "unix:/a b"]
)
def test_an_address_is_a_path_or_a_host_and_a_port(address: str) -> None:
    found = load(api_listen=address, api_upstream=address)
    assert (found.api_listen_address, found.api_upstream_address) == (address, address)


@pytest.mark.parametrize(
    "address",
    ["api:8000", "tcp:api", "tcp::8000", "tcp:api:0", "tcp:api:65536", "tcp:::1:80", "unix:a", "unix:"],
)
def test_an_invalid_address_is_rejected(address: str) -> None:
    with pytest.raises(SettingsError, match="API_UPSTREAM: must be unix:/path or tcp:host:port"):
        load(api_upstream=address)
