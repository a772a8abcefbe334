"""the last measured size of each home, and the notices of the disk watchdog"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

# The dashboard shows a notice at once. Sizes cause no notification.
TELL_NOTICE = """
    CREATE FUNCTION tell_notice() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF TG_OP = 'INSERT' AND NEW.notice IS NULL THEN
            RETURN NULL;
        END IF;
        PERFORM pg_notify('ws_sse', json_build_object('id', id, 'user_id', owner_id)::text)
        FROM workspaces WHERE id = NEW.workspace_id;
        RETURN NULL;
    END $$
"""
TRIGGER = (
    "CREATE TRIGGER tell_notice AFTER INSERT OR UPDATE OF notice ON home_sizes "
    "FOR EACH ROW EXECUTE FUNCTION tell_notice()"
)


def upgrade() -> None:
    op.create_table(
        "home_sizes",
        sa.Column("workspace_id", sa.Text(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("entries", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("complete", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("largest", postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), nullable=True),
        sa.Column("quota_bytes", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("measured_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("notice", sa.Text(), nullable=True),
        sa.Column("warned_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("stopped_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["workspace_id"], ["workspaces.id"], name=op.f("fk_home_sizes_workspace_id")),
        sa.PrimaryKeyConstraint("workspace_id", name=op.f("pk_home_sizes")),
    )
    op.execute(TELL_NOTICE)
    op.execute(TRIGGER)


def downgrade() -> None:
    op.drop_table("home_sizes")
    op.execute("DROP FUNCTION tell_notice()")
