"""deletes without an archive and without a grace period"""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("workspaces", sa.Column("grace_waived_at", sa.DateTime(timezone=True)))
    op.create_check_constraint(
        op.f("ck_workspaces_grace_waived_is_deleted"),
        "workspaces",
        "grace_waived_at IS NULL OR deleted_at IS NOT NULL",
    )
    op.create_index(
        "ix_workspaces_waived",
        "workspaces",
        ["id"],
        postgresql_where=sa.text("grace_waived_at IS NOT NULL AND purged_at IS NULL"),
    )


def downgrade() -> None:
    op.drop_index("ix_workspaces_waived", "workspaces")
    op.drop_constraint(op.f("ck_workspaces_grace_waived_is_deleted"), "workspaces")
    op.drop_column("workspaces", "grace_waived_at")
