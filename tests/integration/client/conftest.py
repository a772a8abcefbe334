"""Both clients of the SDK, on a whole `codehub up`."""

import asyncio
import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.integration.access.conftest import IMAGES
from tests.sdk import KINDS, make_client, sign_in
from tests.services import System
from tests.waiting import PATIENCE, wait_for

KEPT_BYTES = 1 << 20
SETTINGS = {"GATEWAY_WORKERS": "1", "LIMITS_MAX_RUNNING_PER_USER": "9", "EXEC_OUTPUT_BYTES": str(KEPT_BYTES)}


@dataclass
class Sdk:
    """A client of one kind, with a token of the admin."""

    system: System
    kind: str
    loop: asyncio.AbstractEventLoop
    token: str
    client: Any

    def connect(self, *arguments: Any, **options: Any) -> Any:
        return make_client(self.kind, self.loop, *arguments, **options)

    def sign_in(self) -> Any:
        system = self.system
        return sign_in(self.kind, self.loop, system.base_url, system.admin_username, system.admin_password)


@pytest.fixture(scope="session")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    if shutil.which("bwrap") is None:
        pytest.skip("bwrap is missing: apt-get install bubblewrap")
    images = tmp_path_factory.mktemp("images") / "images.toml"
    images.write_text(IMAGES)
    system = System({"IMAGES_FILE": str(images), **SETTINGS})
    try:
        yield system.start()
    finally:
        system.close()


@pytest.fixture(scope="session")
def token(system: System) -> str:
    with contextlib.closing(system.client()) as api:
        body = {"name": "sdk", "scopes": ["read", "manage", "use"]}
        made = api.post("/api/v1/tokens", json=body)
    assert made.status_code == 201, made.text
    secret: str = made.json()["token"]
    return secret


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.run_until_complete(made.shutdown_asyncgens())
    made.close()


@pytest.fixture(params=KINDS)
def sdk(
    request: pytest.FixtureRequest, system: System, token: str, loop: asyncio.AbstractEventLoop
) -> Iterator[Sdk]:
    client = make_client(
        request.param, loop, system.base_url, token, retry_seconds=PATIENCE, reconnect_seconds=PATIENCE
    )
    yield Sdk(system, request.param, loop, token, client)
    client.close()


@pytest.fixture
def workspace(sdk: Sdk) -> Iterator[Any]:
    """A running workspace, as an object of the client."""
    made = sdk.client.workspaces.create("one")
    made.wait_until("RUNNING", timeout=PATIENCE)
    yield made
    wait_for(lambda: is_deleted(made), "the workspace to be deleted")


def is_deleted(workspace: Any) -> bool:
    from codehub.client import Conflict

    try:
        workspace.delete_for_good(confirm=workspace.name)
    except Conflict:
        return False
    return True
