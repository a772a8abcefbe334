"""A workspace for an agent."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from codehub.client import Client, NotFound, Workspace
from tests.integration.client.conftest import is_deleted
from tests.services import System
from tests.waiting import PATIENCE, wait_for


@pytest.fixture
def demo(system: System, token: str) -> Iterator[Workspace]:
    with Client(system.base_url, token, retry_seconds=PATIENCE) as client:
        made = client.workspaces.create("demo")
        made.wait_until("RUNNING", PATIENCE)
        yield made
        wait_for(lambda: is_deleted(made), "the workspace to be deleted")


@dataclass
class BoundToken:
    id: str
    secret: str


@pytest.fixture
def bound(system: System, demo: Workspace) -> Iterator[BoundToken]:
    """A token that reads and uses the workspace, and no other."""
    with Client.sign_in(system.base_url, system.admin_username, system.admin_password) as person:
        made = person.tokens.create("agent", ["read", "use"], workspaces=[demo.id], expires_in_days=1)
        yield BoundToken(made.id, made.token)
        with contextlib.suppress(NotFound):  # a test may have revoked it
            person.tokens.revoke(made.id)
