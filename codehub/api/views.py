"""Response models of workspaces and accounts."""

from datetime import datetime, timedelta
from typing import Literal

from pydantic import BaseModel

from codehub.api.services import Config
from codehub.database.accounts import Account
from codehub.database.credentials import Credential
from codehub.database.workspace_queries import DetailedWorkspace, OwnedWorkspace
from codehub.domain.allowed_changes import RecoveryOption, recovery_options
from codehub.domain.awake import awake_at
from codehub.domain.conditions import holds
from codehub.domain.standby import Standby, StandbyCode, standby
from codehub.domain.states import ConditionName, DesiredState, ErrorReason, Operation, Phase, Role
from codehub.domain.ttl import archive_at
from codehub.domain.workspace import Workspace


class UserView(BaseModel):
    id: str
    username: str
    role: Role

    @classmethod
    def of_credential(cls, caller: Credential) -> "UserView":
        return cls(id=caller.user_id, username=caller.username, role=caller.role)

    @classmethod
    def of_account(cls, account: Account) -> "UserView":
        return cls(id=account.id, username=account.username, role=account.role)


class AccountView(UserView):
    """An account. Nobody can sign in to a service account: programs use its tokens."""

    created_at: datetime
    service: bool

    @classmethod
    def of_account(cls, account: Account) -> "AccountView":
        return cls(
            id=account.id,
            username=account.username,
            role=account.role,
            created_at=account.created_at,
            service=account.is_service,
        )


class ListedAccountView(AccountView):
    """An account with the size of all its archives, including those in the trash."""

    archive_bytes: int

    @classmethod
    def of_listed(cls, account: Account, archive_bytes: int) -> "ListedAccountView":
        return cls(**dict(AccountView.of_account(account)), archive_bytes=archive_bytes)


class OwnerView(BaseModel):
    id: str
    username: str


class ConditionView(BaseModel):
    status: Literal["True", "False"]
    reason: str
    message: str
    last_transition_time: datetime


class ProgressView(BaseModel):
    bytes: int
    total: int | None
    files: int | None


class LargeEntryView(BaseModel):
    name: str
    bytes: int


class HomeView(BaseModel):
    """A home on the disk, as last measured.

    Without `complete`, it is at least this large. `quota_bytes` is null without a quota. `notice` says why
    the workspace was, or will be, stopped to save disk space; it is null otherwise.
    """

    bytes: int
    entries: int
    complete: bool
    quota_bytes: int | None
    is_full: bool
    measured_at: datetime | None
    notice: str | None


class DetailedHomeView(HomeView):
    largest: list[LargeEntryView]


class StandbyView(BaseModel):
    """When a running workspace will be stopped if nothing changes until then, and why not earlier.

    `at` is null if it never stops when unused. `reason` is a sentence; `code` and the other fields have its
    facts. `since`: when the oldest command or the CPU use began, or a person last used it (`limit`). `until`:
    when the lease or the extension ends, or the limit is reached. `not_before`: what else holds it, after
    its commands have ended. `cpu_percent`: its CPU use on average over ten minutes, in percent of one core,
    if it is above `cpu_above_percent` and keeps the workspace awake.
    """

    at: datetime | None
    reason: str
    code: StandbyCode
    ttl_seconds: int
    since: datetime | None
    until: datetime | None
    not_before: datetime | None
    commands: int
    lease_reason: str | None
    cpu_percent: int | None
    cpu_above_percent: int | None

    @classmethod
    def of(cls, standby: Standby) -> "StandbyView":
        return cls(**vars(standby), reason=standby.reason)


class WorkspaceSummary(BaseModel):
    """A workspace in lists and events, without long fields. `version` grows with every change."""

    id: str
    name: str
    description: str
    image_ref: str
    owner: OwnerView
    phase: Phase
    operation: Operation
    desired_state: DesiredState
    conditions: dict[ConditionName, ConditionView]
    error_reason: ErrorReason | None
    error_count: int
    error_message: str | None
    ways_out: list[RecoveryOption]
    progress: ProgressView | None
    home: HomeView | None
    has_archive: bool
    archive_to_restore: str | None
    url: str
    created_at: datetime
    updated_at: datetime
    last_access_at: datetime
    phase_changed_at: datetime
    op_started_at: datetime | None
    standby_at: datetime | None
    standby: StandbyView | None
    archive_at: datetime | None
    keep_until: datetime | None
    standby_ttl_seconds: int | None
    archive_ttl_seconds: int | None
    awake_cpu_percent: int | None
    deleted_at: datetime | None
    purge_at: datetime | None
    version: int


class CurrentArchiveView(BaseModel):
    created_at: datetime
    bytes: int


class WorkspaceView(WorkspaceSummary):
    """A workspace with its memo, the largest entries of its home and its current archive."""

    memo: str
    archive: CurrentArchiveView | None
    home: DetailedHomeView | None


class WorkspacePage(BaseModel):
    items: list[WorkspaceSummary]
    total: int


def summary(owned: OwnedWorkspace, config: Config, now: datetime) -> WorkspaceSummary:
    workspace = owned.workspace
    stops = standby(workspace, config.ttl, awake_at(owned.holds, now))
    return WorkspaceSummary(
        id=workspace.id,
        name=workspace.name,
        description=workspace.description,
        image_ref=workspace.image_ref,
        owner=OwnerView(id=workspace.owner_id, username=owned.owner_name),
        phase=workspace.phase,
        operation=workspace.operation,
        desired_state=workspace.desired_state,
        conditions=_conditions(workspace),
        error_reason=workspace.error_reason,
        error_count=workspace.error_count,
        error_message=workspace.error_message,
        ways_out=list(recovery_options(workspace)),
        progress=_progress(workspace),
        home=_home(owned),
        has_archive=workspace.archive_key is not None,
        archive_to_restore=workspace.archive_to_restore,
        url=f"{config.settings.base_url}/w/{workspace.id}/",
        created_at=workspace.created_at,
        updated_at=workspace.updated_at,
        last_access_at=workspace.last_access_at,
        phase_changed_at=workspace.phase_changed_at,
        op_started_at=workspace.op_started_at,
        standby_at=None if stops is None else stops.at,
        standby=None if stops is None else StandbyView.of(stops),
        archive_at=archive_at(workspace, config.ttl),
        keep_until=workspace.keep_until,
        standby_ttl_seconds=workspace.standby_ttl_seconds,
        archive_ttl_seconds=workspace.archive_ttl_seconds,
        awake_cpu_percent=workspace.awake_cpu_percent,
        deleted_at=workspace.deleted_at,
        purge_at=_purge_at(workspace, config),
        version=workspace.version,
    )


def detailed_view(detailed: DetailedWorkspace, config: Config, now: datetime) -> WorkspaceView:
    fields = dict(summary(detailed, config, now))
    home: HomeView | None = fields.pop("home")
    largest = detailed.home.size.largest if detailed.home else ()
    entries = [LargeEntryView(name=entry.name, bytes=entry.bytes) for entry in largest]
    detailed_home = None if home is None else DetailedHomeView(**dict(home), largest=entries)
    stored = detailed.archive
    archive = CurrentArchiveView(created_at=stored.created_at, bytes=stored.bytes) if stored else None
    return WorkspaceView(**fields, home=detailed_home, memo=detailed.memo, archive=archive)


def _conditions(workspace: Workspace) -> dict[ConditionName, ConditionView]:
    return {
        name: ConditionView(
            status="True" if condition.status else "False",
            reason=condition.reason,
            message=condition.message,
            last_transition_time=condition.last_transition_time,
        )
        for name, condition in workspace.conditions.items()
    }


def _home(owned: OwnedWorkspace) -> HomeView | None:
    """Return the measured home, or None while none is on the disk: the measurement is stale."""
    home = owned.home
    if home is None or not holds(owned.workspace.conditions, ConditionName.VOLUME_READY):
        return None
    size = home.size
    return HomeView(
        bytes=size.bytes,
        entries=size.entries,
        complete=size.complete,
        quota_bytes=size.quota_bytes or None,
        is_full=size.is_full,
        measured_at=home.measured_at,
        notice=home.notice,
    )


def _progress(workspace: Workspace) -> ProgressView | None:
    """Return the progress of the operation in progress. Ignore what an earlier operation left."""
    if workspace.progress is None or workspace.operation is Operation.NONE:
        return None
    progress = workspace.progress
    return ProgressView(bytes=progress.bytes, total=progress.total, files=progress.files)


def _purge_at(workspace: Workspace, config: Config) -> datetime | None:
    if workspace.deleted_at is None:
        return None
    if workspace.grace_waived_at is not None:
        return workspace.grace_waived_at
    return workspace.deleted_at + timedelta(seconds=config.settings.trash_retention_seconds)
