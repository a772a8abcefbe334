"""every update of a workspace increments its version"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

# A trigger, so that no writer can forget the version or set it back.
COUNT_VERSION = """
    CREATE FUNCTION count_version() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        NEW.version := OLD.version + 1;
        RETURN NEW;
    END $$
"""
TRIGGER = (
    "CREATE TRIGGER count_version BEFORE UPDATE ON workspaces FOR EACH ROW EXECUTE FUNCTION count_version()"
)


def upgrade() -> None:
    op.add_column(
        "workspaces", sa.Column("version", sa.BigInteger(), server_default=sa.text("0"), nullable=False)
    )
    op.create_index(
        "ix_workspaces_versions",
        "workspaces",
        ["id"],
        postgresql_include=["version"],
        postgresql_where=sa.text("purged_at IS NULL"),
    )
    op.execute(COUNT_VERSION)
    op.execute(TRIGGER)


def downgrade() -> None:
    op.execute("DROP TRIGGER count_version ON workspaces")
    op.execute("DROP FUNCTION count_version()")
    op.drop_index("ix_workspaces_versions", table_name="workspaces")
    op.drop_column("workspaces", "version")
