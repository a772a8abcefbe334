"""CPU use that keeps workspaces awake"""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    time = sa.DateTime(timezone=True)
    op.add_column("workspaces", sa.Column("awake_cpu_percent", sa.Integer(), nullable=True))
    op.create_check_constraint(
        op.f("ck_workspaces_awake_cpu_percent_not_negative"), "workspaces", "awake_cpu_percent >= 0"
    )
    op.create_table(
        "cpu_holds",
        sa.Column("workspace_id", sa.Text(), nullable=False),
        sa.Column("percent", sa.Float(), nullable=False),
        sa.Column("above_percent", sa.Integer(), nullable=False),
        sa.Column("began_at", time, nullable=False),
        sa.Column("measured_at", time, nullable=False),
        sa.ForeignKeyConstraint(["workspace_id"], ["workspaces.id"], name=op.f("fk_cpu_holds_workspace_id")),
        sa.PrimaryKeyConstraint("workspace_id", name=op.f("pk_cpu_holds")),
    )


def downgrade() -> None:
    op.drop_table("cpu_holds")
    op.drop_constraint(op.f("ck_workspaces_awake_cpu_percent_not_negative"), "workspaces")
    op.drop_column("workspaces", "awake_cpu_percent")
