"""Which workspaces a coordinator acts on: those of its own runtime and storage.

Two runtimes on one home would be two containers on one home. So a workspace of another backend is left alone
until a coordinator of that backend leads again.
"""

from dataclasses import dataclass, replace
from datetime import datetime

from codehub.domain.conditions import updated_condition
from codehub.domain.states import ConditionName
from codehub.domain.workspace import Workspace

OTHER_BACKEND = "OtherBackend"
"""The reason of `policy.healthy` while a workspace is left alone; its message is for people."""


@dataclass(frozen=True)
class Backends:
    """What runs workspaces, and what keeps their homes."""

    instance: str
    storage: str


def why_left_alone(workspace: Workspace, own: Backends) -> str | None:
    """Return a sentence if the workspace is of another backend than the coordinator, else None."""
    if workspace.instance_backend != own.instance:
        return (
            f"This workspace is on the {workspace.instance_backend} runtime, but CodeHub now uses "
            f"{own.instance}. It stays as it is until an administrator sets "
            f"RUNTIME={workspace.instance_backend} again."
        )
    if workspace.storage_backend != own.storage:
        return (
            f"The home of this workspace is on {workspace.storage_backend} storage, but CodeHub now uses "
            f"{own.storage}. It stays as it is until an administrator changes that back."
        )
    return None


def left_alone(workspace: Workspace, sentence: str, now: datetime) -> Workspace:
    """Return the workspace with nothing changed but the sentence that explains it."""
    conditions, name = dict(workspace.conditions), ConditionName.HEALTHY
    conditions[name] = updated_condition(
        conditions, name, conditions[name].status, OTHER_BACKEND, sentence, now
    )
    return workspace if conditions == workspace.conditions else replace(workspace, conditions=conditions)


def left_alone_message(workspace: Workspace) -> str | None:
    """Return why the workspace was last left alone, or None while a coordinator acts on it."""
    healthy = workspace.conditions[ConditionName.HEALTHY]
    return healthy.message if healthy.reason == OTHER_BACKEND else None
