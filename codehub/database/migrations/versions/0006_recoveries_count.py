"""a requested recovery counts against the limits"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

INDEX = "ix_workspaces_counted"
FOR_GOOD = (
    "error_reason IS NULL OR error_reason NOT IN ("
    "'ArchiveCorrupted', 'ContainerWithoutVolume', 'DataLost', 'ImagePullFailed', 'RetryExceeded', 'Timeout')"
)
CONTAINER = "(conditions -> 'infra.container_exists' ->> 'status') = 'True'"
COUNTED = f"(desired_state = 'RUNNING' AND ({FOR_GOOD} OR request IS NOT NULL) OR {CONTAINER})"
BEFORE = f"(desired_state = 'RUNNING' AND ({FOR_GOOD}) OR {CONTAINER})"


def upgrade() -> None:
    _replace(COUNTED)


def downgrade() -> None:
    _replace(BEFORE)


def _replace(where: str) -> None:
    op.drop_index(INDEX, table_name="workspaces")
    op.create_index(INDEX, "workspaces", ["owner_id"], postgresql_where=sa.text(where))
