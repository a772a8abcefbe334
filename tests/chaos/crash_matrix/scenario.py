"""A scenario: one operation, from where it begins, by which wish, to which end."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from codehub.domain.states import DesiredState, Phase
from tests.chaos.crash_matrix.lane import PURGED, Lane
from tests.chaos.crash_matrix.wishes import Wish

PARTS = ("home.tar.zst", ".meta")
"""Of a whole archive."""
NOTHING, EMPTY, OLDER, NEWER = "nothing", "empty", "older", "newer"
"""What a home or an archive may hold: the homes of the stages are two, one made from the other."""


class Kind(StrEnum):
    """What the owner does, or GC does for them: `make test` plays one scenario of each kind."""

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
    wish: Wish
    phase: Phase
    home: str
    archive: str
    must: frozenset[str]
    """Steps at which someone must have died: a matrix that shrinks is to be noticed."""
    stage: str = ""
    """Empty: the wish is what makes the workspace."""
    begin: str = ""
    """Of a RUNNING workspace: the step that begins the operation."""
    settings: Mapping[str, object] = field(default_factory=dict)
    purged: bool = False
    cancelled: bool = False
    in_error: bool = False
    losses: int = 0
    """How often something is taken for lost on the way."""
    aside: bool = False
    """A home is left behind beside the new one, and kept."""
    kept: str = NOTHING
    """What the archive holds that a recovery keeps for the grace period, whatever becomes of it."""
    sole: bool = False
    """No archive is left but the workspace's own."""
    desired: DesiredState | None = None
    """Where it is wished to be, if not where it is."""
    only: str = ""
    """The steps to die at, where the others are those of another scenario."""

    async def is_reached(self, lane: Lane) -> bool:
        if self.purged and (lane.store.names() or lane.home.exists()):
            return False
        if self.purged and not await lane.ask(PURGED, lane.workspace_id):
            return False
        if self.sole and len(lane.store.names()) > len(PARTS):
            return False
        return await lane.rests_at(self.phase)
