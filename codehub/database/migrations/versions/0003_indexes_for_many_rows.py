"""indexes for installations with 100,000 workspaces"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

Partial = tuple[str, Sequence[str | sa.TextClause], str]

LIVING = "deleted_at IS NULL"
TRASH = "deleted_at IS NOT NULL AND purged_at IS NULL"
COUNTED = (
    "(desired_state = 'RUNNING' AND (error_reason IS NULL OR error_reason NOT IN ("
    "'ArchiveCorrupted', 'ContainerWithoutVolume', 'DataLost', 'ImagePullFailed', 'RetryExceeded', 'Timeout')) "
    "OR (conditions -> 'infra.container_exists' ->> 'status') = 'True')"
)


def _at_rest(phase: str) -> str:
    return f"phase = '{phase}' AND desired_state = '{phase}' AND operation = 'NONE' AND deleted_at IS NULL"


def _deadline(since: str, seconds: str) -> str:
    return f"(({since} AT TIME ZONE 'UTC') + make_interval(secs => {seconds}))"


STANDBY_DEADLINE = _deadline("last_access_at", "standby_ttl_seconds")
ARCHIVE_DEADLINE = _deadline("phase_changed_at", "archive_ttl_seconds")
INDEXES: tuple[Partial, ...] = (
    ("owner", ["owner_id", "created_at", "number"], LIVING),
    ("newest", ["created_at", "number", "phase"], LIVING),
    ("trash", ["owner_id", "deleted_at", "number"], TRASH),
    ("errors", ["phase_changed_at"], "phase = 'ERROR'"),
    ("operations", ["op_id"], "op_id IS NOT NULL"),
    ("counted", ["owner_id"], COUNTED),
    ("standby_ttl_default", ["last_access_at"], f"{_at_rest('RUNNING')} AND standby_ttl_seconds IS NULL"),
    ("standby_ttl_own", [sa.text(STANDBY_DEADLINE)], f"{_at_rest('RUNNING')} AND standby_ttl_seconds > 0"),
    ("archive_ttl_default", ["phase_changed_at"], f"{_at_rest('STANDBY')} AND archive_ttl_seconds IS NULL"),
    ("archive_ttl_own", [sa.text(ARCHIVE_DEADLINE)], f"{_at_rest('STANDBY')} AND archive_ttl_seconds > 0"),
)
REPLACED: tuple[Partial, ...] = (
    ("owner", ["owner_id", "created_at"], LIVING),
    ("trash", ["owner_id", "deleted_at"], "deleted_at IS NOT NULL"),
    ("active", ["id"], "operation <> 'NONE' OR request IS NOT NULL"),
    ("wanted", ["owner_id"], "desired_state = 'RUNNING'"),
)


def upgrade() -> None:
    _drop(REPLACED)
    _create(INDEXES)
    op.create_index("ix_login_failures_last_failed_at", "login_failures", ["last_failed_at"])


def downgrade() -> None:
    op.drop_index("ix_login_failures_last_failed_at", table_name="login_failures")
    _drop(INDEXES)
    _create(REPLACED)


def _create(indexes: tuple[Partial, ...]) -> None:
    for name, columns, where in indexes:
        op.create_index(f"ix_workspaces_{name}", "workspaces", list(columns), postgresql_where=sa.text(where))


def _drop(indexes: tuple[Partial, ...]) -> None:
    for name, _columns, _where in indexes:
        op.drop_index(f"ix_workspaces_{name}", table_name="workspaces")
