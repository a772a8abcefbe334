"""Errors reach a workspace's owner without paths of the host."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import text

from codehub.domain.states import DesiredState, Phase
from codehub.domain.workspace import Workspace
from tests.integration.coordinator.conftest import CoordinatorStack
from tests.waiting import eventually


@dataclass(frozen=True)
class Fault:
    """A fault. `at` is the state in which it happens, `then` what is requested afterwards."""

    happens: Callable[[CoordinatorStack, Workspace, Path], None]
    shows: str
    at: DesiredState = DesiredState.STANDBY
    then: DesiredState = DesiredState.RUNNING
    image: str = "tiny"


def goes_away(name: str) -> Callable[[CoordinatorStack, Workspace, Path], None]:
    def happens(stack: CoordinatorStack, _workspace: Workspace, _home: Path) -> None:
        directory = stack.settings.data_dir / name
        directory.rename(directory.with_name(f"{name}-away"))

    return happens


def home_is_a_file(_bench: CoordinatorStack, _workspace: Workspace, home: Path) -> None:
    shutil.rmtree(home)
    home.write_text("")


def fence_is_damaged(_bench: CoordinatorStack, _workspace: Workspace, home: Path) -> None:
    (home.parent / ".fence").write_text("noise")


def archive_is_damaged(stack: CoordinatorStack, workspace: Workspace, _home: Path) -> None:
    assert workspace.archive_key is not None
    (stack.settings.data_dir / "archives" / workspace.archive_key).write_bytes(b"noise")


def runtime_directory_is_a_file(stack: CoordinatorStack, workspace: Workspace, _home: Path) -> None:
    (stack.settings.data_dir / "runtime" / workspace.id).write_text("")


def nothing(_bench: CoordinatorStack, _workspace: Workspace, _home: Path) -> None:
    pass


FAULTS = {
    "the homes' disk is not mounted": Fault(goes_away("volumes"), "mounted"),
    "the store's disk is not mounted": Fault(goes_away("archives"), "mounted", then=DesiredState.ARCHIVED),
    "the home is a file": Fault(home_is_a_file, "not a directory"),
    "the fence is damaged": Fault(fence_is_damaged, "does not contain an epoch"),
    "the archive is damaged": Fault(archive_is_damaged, "archive", at=DesiredState.ARCHIVED),
    "a file where the container's files belong": Fault(runtime_directory_is_a_file, "is damaged"),
    "the IDE ends at once": Fault(nothing, "no such luck", image="broken"),
}


async def shown(stack: CoordinatorStack, workspace_id: str) -> str:
    """Return everything that the API and the pages show of a workspace, with its timeline."""
    async with (
        stack.engine.begin() as conn
    ):  # repeat the hint of the request: it is lost before the leader listens
        hint = json.dumps({"id": workspace_id, "user_id": "u1"})
        await conn.execute(text("SELECT pg_notify('ws_wake', :hint)"), {"hint": hint})
    workspace = await stack.get(workspace_id)
    conditions = [f"{fact.reason}: {fact.message}" for fact in workspace.conditions.values()]
    return "\n".join([workspace.error_message or "", *conditions, *await stack.timeline(workspace_id)])


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
async def test_a_failure_shows_no_path_of_the_host(stack: CoordinatorStack, fault: Fault) -> None:
    await stack.start()
    workspace_id = await stack.create(fault.at, image=fault.image)
    workspace = await stack.until_phase(workspace_id, Phase(fault.at.value))
    await stack.stop()
    fault.happens(stack, workspace, await stack.home(workspace_id))
    try:
        await stack.start()
        await stack.set_desired_state(workspace_id, fault.then)
        seen = await eventually(
            lambda: shown(stack, workspace_id),
            f"a message with {fault.shows!r}",
            lambda it: fault.shows in it,
        )
    finally:
        await stack.stop()
    for secret in (str(stack.settings.data_dir), stack.settings.data_dir.name, "/volumes/", "users/u1"):
        assert secret not in seen, seen
