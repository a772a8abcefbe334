"""Request to restore a chosen archive: when it is carried out, and when it is dropped (ADR 0038).

Until the request is carried out, `archive_key` and `home_ctx` name the present home.
"""

from dataclasses import replace

from codehub.domain.allowed_changes import archive_committed
from codehub.domain.archive_keys import archive_key
from codehub.domain.decision import Decision, TimelineEvent, without_errors, without_operation
from codehub.domain.error_policy import is_terminal
from codehub.domain.observation import ArchiveFact, Observation
from codehub.domain.states import DesiredState, Operation
from codehub.domain.workspace import Workspace

NOT_ARCHIVED = "The archive is not restored: the present home could not be archived. Nothing was replaced."
GONE = "The archive is not restored: it is no longer in the store, or damaged. The present home stays."
WAITS = "The restore waits until the chosen archive can be checked."


def must_observe_chosen(workspace: Workspace) -> bool:
    """Return whether the next decision may depend on the chosen archive being there."""
    if workspace.archive_to_restore is None:
        return False
    return workspace.operation is Operation.NONE or archive_committed(workspace)


def wait_or_drop(workspace: Workspace, observation: Observation) -> Decision | None:
    """Return what to do if the chosen archive is gone or cannot be checked; None if it is complete."""
    if isinstance(observation.chosen, ArchiveFact):
        return None
    if observation.chosen is None:
        return drop(workspace, GONE)
    return Decision(WAITS, workspace)


def drop(workspace: Workspace, sentence: str) -> Decision:
    """End the request, and the operation under way, without a change of the home."""
    after = without_operation(workspace)
    if not is_terminal(after.error_reason):
        after = replace(without_errors(after), error_message=sentence)
    return Decision(sentence, after, TimelineEvent.DROPPED, consume=True)


def replace_archive(workspace: Workspace) -> Decision:
    """Make the chosen archive the workspace's. Its home is in `archive_key` until then, and is kept."""
    key = archive_key(workspace.id, workspace.archive_to_restore or "")
    kept = "" if key == workspace.archive_key else f" The home before it is kept as {workspace.archive_key}."
    return Decision(
        f"Restoring the chosen archive {key}.{kept}",
        replace(workspace, archive_key=key),
        TimelineEvent.CHOSEN,
        keep_archives=True,
        desired=DesiredState.STANDBY,
        consume=True,
    )
