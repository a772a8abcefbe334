"""Scenario of the crash matrix: an initial state, an action, and what must hold at the end."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from codehub.domain.states import DesiredState, Phase
from tests.chaos.crash_matrix.installation import PURGED, Installation
from tests.chaos.crash_matrix.user_actions import Action

ARCHIVE_PARTS = ("home.tar.zst", ".meta")
"""Objects of a complete archive."""
NOTHING, EMPTY, OLDER, NEWER = "nothing", "empty", "older", "newer"
"""Contents of a home or an archive. NEWER is OLDER with later changes."""


class Kind(StrEnum):
    """Kind of action of the owner or of GC; `make test` runs one scenario of each kind."""

    CREATE = "create"
    RESTORE = "restore"
    START = "start"
    STOP = "stop"
    ARCHIVE = "archive"
    DELETE = "delete"
    CANCEL = "cancel"
    RECOVER = "recover"
    TRASH = "trash"


@dataclass(frozen=True)
class Scenario:
    name: str
    kind: Kind
    action: Action
    phase: Phase
    home: str
    archive: str
    required_steps: frozenset[str]
    """Steps that must have crash points, so that the matrix cannot shrink unnoticed."""
    initial_state: str = ""
    """Name of the saved state. If empty, the action creates the workspace."""
    first_step: str = ""
    """The workspace is RUNNING first, and earlier steps than this one do not count."""
    settings: Mapping[str, object] = field(default_factory=dict)
    purged: bool = False
    cancelled: bool = False
    in_error: bool = False
    losses: int = 0
    """Expected number of timeline events that report a loss."""
    sets_home_aside: bool = False
    """Whether a foreign home is set aside and kept."""
    kept_archive: str = NOTHING
    """Content of the archive that a recovery keeps for the grace period."""
    keeps_own_archive: bool = False
    """Whether the workspace's own archive is kept for the grace period as well."""
    only_archive: bool = False
    """Whether GC must remove every archive but the workspace's."""
    desired_state: DesiredState | None = None
    """desired_state at the end, if it differs from the phase."""
    only_steps: str = ""
    """Regular expression of the steps to crash at, if another scenario covers the others."""

    async def is_reached(self, installation: Installation) -> bool:
        if self.purged and (installation.store.names() or installation.home.exists()):
            return False
        if self.purged and not await installation.query_bool(PURGED, installation.workspace_id):
            return False
        if self.only_archive and len(installation.store.names()) > len(ARCHIVE_PARTS):
            return False
        return await installation.is_at_rest_in(self.phase)
