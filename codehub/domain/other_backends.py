"""Workspaces of another runtime or storage, which a coordinator leaves alone (ADR 0020).

Two runtimes on one home would mean two containers on one home. So a workspace of another backend
stays as it is until a coordinator of that backend leads again.
"""

from dataclasses import dataclass, replace
from datetime import datetime

from codehub.domain.conditions import updated_condition
from codehub.domain.states import ConditionName
from codehub.domain.workspace import Workspace

OTHER_BACKEND = "OtherBackend"
"""Reason of `policy.healthy` while a workspace is left alone. Its message is for people."""


@dataclass(frozen=True)
class Backends:
    """Names of the runtime that runs workspaces and of the storage that holds their homes."""

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
            f"{own.storage}. It stays as it is until CodeHub uses {workspace.storage_backend} storage again."
        )
    return None


def explain_left_alone(workspace: Workspace, sentence: str, now: datetime) -> Workspace:
    """Return the workspace with only the message changed that explains why it is left alone."""
    conditions, name = dict(workspace.conditions), ConditionName.HEALTHY
    conditions[name] = updated_condition(
        conditions, name, conditions[name].status, OTHER_BACKEND, sentence, now
    )
    return workspace if conditions == workspace.conditions else replace(workspace, conditions=conditions)


def left_alone_message(workspace: Workspace) -> str | None:
    """Return why the workspace was last left alone, or None while a coordinator acts on it."""
    healthy = workspace.conditions[ConditionName.HEALTHY]
    return healthy.message if healthy.reason == OTHER_BACKEND else None
