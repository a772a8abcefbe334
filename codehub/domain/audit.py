"""Entries of the audit log: who did what to whom, from where, with what outcome (ADR 0023)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final

from codehub.domain.states import Role
from codehub.domain.token_format import without_tokens

MOST_CHARACTERS: Final = 200
"""Longest name or detail; longer ones are cut."""
MOST_ITEMS: Final = 10
"""Longest list in a detail; longer ones are cut."""
FAILURE_WINDOW: Final = timedelta(hours=1)
FAILURES_OF_ONE_NETWORK: Final = 20
FAILURES_OF_ALL: Final = 200
"""Failed passwords with an entry each within one window. The rest are only counted."""
LOCKS_OF_ONE_ACCOUNT: Final = 3
LOCKS_OF_ALL: Final = 100
"""Lockouts of existing accounts with an entry each. Other failures do not use up these entries."""

Detail = str | int | tuple[str, ...]


class Action(StrEnum):
    """Kind of act. The names are part of the API and never change."""

    SESSION_OPENED = "session.opened"
    SESSION_FAILED = "session.failed"
    SESSION_LOCKED = "session.locked"
    SESSION_CONFIRMATION_FAILED = "session.confirmation_failed"
    SESSION_FAILURES_COUNTED = "session.failures_counted"
    USER_CREATED = "user.created"
    USER_DELETED = "user.deleted"
    USER_ROLE_CHANGED = "user.role_changed"
    USER_PASSWORD_CHANGED = "user.password_changed"  # noqa: S105 - a name
    USER_PASSWORD_SET = "user.password_set"  # noqa: S105 - a name
    TOKEN_CREATED = "token.created"  # noqa: S105 - a name
    TOKEN_REVOKED = "token.revoked"  # noqa: S105 - a name
    WORKSPACE_STOPPED = "workspace.stopped"
    WORKSPACE_RECOVERED = "workspace.recovered"
    WORKSPACE_RESTORED = "workspace.restored"
    WORKSPACE_DELETED = "workspace.deleted"
    WORKSPACE_DELETED_FOR_GOOD = "workspace.deleted_for_good"
    WORKSPACE_UNDELETED = "workspace.undeleted"
    LIMITS_CHANGED = "limits.changed"
    SECURITY_WEAKENED = "security.weakened"
    SECURITY_RESTORED = "security.restored"


class ActorKind(StrEnum):
    """Kind of actor.

    ANONYMOUS: not signed in. CLI: a command on the host. SYSTEM: a part of CodeHub.
    """

    USER = "user"
    ADMIN = "admin"
    ANONYMOUS = "anonymous"
    CLI = "cli"
    SYSTEM = "system"


class TargetKind(StrEnum):
    USER = "user"
    WORKSPACE = "workspace"
    SETTINGS = "settings"
    TOKEN = "token"  # noqa: S105 - a name


class Outcome(StrEnum):
    SUCCESS = "success"
    FAILURE = "failure"


FAILED_PASSWORDS: Final = (
    Action.SESSION_FAILED,
    Action.SESSION_LOCKED,
    Action.SESSION_CONFIRMATION_FAILED,
)
"""Actions that anyone can cause, so the number of their entries is limited."""

_FAILURES: Final = frozenset((*FAILED_PASSWORDS, Action.SESSION_FAILURES_COUNTED))
_DETAILS: Final[Mapping[Action, frozenset[str]]] = {
    Action.SESSION_LOCKED: frozenset(("failures", "seconds")),
    Action.SESSION_FAILURES_COUNTED: frozenset(("failures", "since", "until")),
    Action.USER_CREATED: frozenset(("role", "service")),
    Action.USER_DELETED: frozenset(("workspaces", "tokens")),
    Action.USER_ROLE_CHANGED: frozenset(("before", "after")),
    Action.TOKEN_CREATED: frozenset(("owner", "scopes", "workspaces", "expires_at")),
    Action.TOKEN_REVOKED: frozenset(("owner",)),
    Action.WORKSPACE_STOPPED: frozenset(("owner", "desired_state")),
    Action.WORKSPACE_RECOVERED: frozenset(("owner", "source", "archive_op_id")),
    Action.WORKSPACE_RESTORED: frozenset(("owner", "archive_op_id")),
    Action.WORKSPACE_DELETED: frozenset(("owner",)),
    Action.WORKSPACE_DELETED_FOR_GOOD: frozenset(("owner",)),
    Action.WORKSPACE_UNDELETED: frozenset(("owner",)),
    Action.LIMITS_CHANGED: frozenset(
        (
            "max_running_per_user",
            "max_running_global",
            "max_workspaces_per_user",
            "max_archive_bytes_per_user",
        )
    ),
    Action.SECURITY_WEAKENED: frozenset(("settings",)),
}
"""Details that each action may have. Others cannot be recorded, so no secret gets into the log."""


@dataclass(frozen=True)
class Actor:
    kind: ActorKind
    name: str = ""
    id: str | None = None
    address: str = ""

    @classmethod
    def person(cls, user_id: str, username: str, role: Role, address: str) -> "Actor":
        kind = ActorKind.ADMIN if role is Role.ADMIN else ActorKind.USER
        return cls(kind, username, user_id, address)

    @classmethod
    def anonymous(cls, address: str) -> "Actor":
        return cls(ActorKind.ANONYMOUS, address=address)


CLI: Final = Actor(ActorKind.CLI, "cli")


@dataclass(frozen=True)
class Target:
    kind: TargetKind
    id: str | None
    name: str


@dataclass(frozen=True)
class AuditEntry:
    """Act, with its details checked against the declared ones."""

    at: datetime
    actor: Actor
    action: Action
    target: Target | None = None
    details: Mapping[str, Detail] = field(default_factory=dict)

    def __post_init__(self) -> None:
        unknown = set(self.details) - _DETAILS.get(self.action, frozenset())
        if unknown:
            raise ValueError(f"{self.action} does not record {', '.join(sorted(unknown))}")

    @property
    def outcome(self) -> Outcome:
        return Outcome.FAILURE if self.action in _FAILURES else Outcome.SUCCESS

    @property
    def address(self) -> str | None:
        found = parse_address(self.actor.address)
        return None if found is None else str(found)

    def values(self) -> dict[str, object]:
        """Return the entry as the columns of its row."""
        target = self.target
        return {
            "at": self.at,
            "actor_id": self.actor.id,
            "actor_name": cut(self.actor.name),
            "actor_kind": self.actor.kind.value,
            "address": self.address,
            "action": self.action.value,
            "target_kind": None if target is None else target.kind.value,
            "target_id": None if target is None else target.id,
            "target_name": None if target is None else cut(target.name),
            "outcome": self.outcome.value,
            "details": {name: _bounded(value) for name, value in self.details.items()},
        }


def cut(text: str) -> str:
    """Return what an entry may hold of a text: not all of a long one, and no token."""
    text = without_tokens(text)
    return text if len(text) <= MOST_CHARACTERS else f"{text[: MOST_CHARACTERS - 1]}…"


def _bounded(value: Detail) -> str | int | list[str]:
    if isinstance(value, tuple):
        return [cut(item) for item in value[:MOST_ITEMS]]
    return cut(value) if isinstance(value, str) else value


def parse_address(address: str) -> IPv4Address | IPv6Address | None:
    """Return the address, or None if it is invalid. An IPv4-mapped IPv6 address becomes IPv4."""
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return None
    return (parsed.ipv4_mapped or parsed) if isinstance(parsed, IPv6Address) else parsed


def network_of(address: str) -> str | None:
    """Return the network of one client: an IPv4 address, or an IPv6 /64."""
    parsed = parse_address(address)
    if parsed is None:
        return None
    return str(ip_network((parsed, 64), strict=False) if parsed.version == 6 else parsed)


def window_start(now: datetime) -> datetime:
    """Return the beginning of the window in which failed passwords are counted."""
    return now.replace(minute=0, second=0, microsecond=0)
